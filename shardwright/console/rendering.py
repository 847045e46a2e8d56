"""Templates, and the form of values on the pages: numbers, sizes, times, bounds."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

from bson import json_util
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from shardwright.console import drawing
from shardwright.console.actions import ACTIONS
from shardwright.console.options import STATIC, TEMPLATES
from shardwright.console.pages_list import NAVIGATION
from shardwright.console.sessions import Rights, Session
from shardwright.console.settings import Settings
from shardwright.console.shell_text import shell_text, short_text

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_ABSENT: Final = Markup('<span class="muted">&ndash;</span>')


class Renderer:
    """Renders pages from templates."""

    def __init__(self, settings: Settings) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(_FILTERS)
        self._environment.globals.update(
            title=settings.title,
            navigation=NAVIGATION,
            drawing=drawing,
            actions=ACTIONS,
            link=link,
            asset=partial(_asset, _fingerprints()),
            colour=drawing.colour,
            shell=shell_text,
        )

    async def page(
        self,
        template: str,
        page: str,
        session: Session | None,
        *,
        status: int = 200,
        rights: Rights | None = None,
        **values: Any,  # noqa: ANN401 - whatever the template shows
    ) -> HTMLResponse:
        """Render a page.

        Args:
            page: its name, for the title and the navigation.
        """
        text = self._environment.get_template(template).render(
            page=page, status=status, session=session, rights=rights, now=datetime.now(UTC), **values
        )
        return HTMLResponse(text, status)


def link(path: str, **query: object) -> str:
    """Return an address of the console; parameters that are None are omitted."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _fingerprints() -> Mapping[str, str]:
    return {each.name: sha256(each.read_bytes()).hexdigest()[:10] for each in STATIC.iterdir() if each.is_file()}


def _asset(fingerprints: Mapping[str, str], name: str) -> str:
    return f"/static/{name}?v={fingerprints[name]}"


def number(value: float | None, digits: int = 0) -> str | Markup:
    """Format a number with separators of thousands; small ones keep some digits."""
    if value is None:
        return _ABSENT
    if digits and abs(value) >= 100:
        digits = 0
    return f"{value:,.{digits}f}"


def size(value: float | None) -> str | Markup:
    """Format bytes in decimal units."""
    if value is None:
        return _ABSENT
    amount, unit = float(value), 0
    while abs(amount) >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if unit == 0 or amount >= 100 else f"{amount:,.1f} {_UNITS[unit]}"


def percent(value: float | None, digits: int = 0) -> str | Markup:
    """Format a share of one."""
    return _ABSENT if value is None else f"{value:.{digits}%}"


def duration(seconds: float | None) -> str | Markup:
    """Format seconds as one or two units."""
    if seconds is None:
        return _ABSENT
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    whole = int(seconds)
    for unit, length, smaller, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit} {rest} {smaller}" if rest else f"{whole // length} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 and seconds != whole else f"{whole} s"


def time_tag(value: datetime | str | None, now: datetime | None = None) -> Markup:
    """Format a time as its distance from now, with the absolute time as title."""
    if value is None:
        return _ABSENT
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    text = (
        "now"
        if abs(seconds) < 1
        else f"{duration(abs(int(seconds)))} ago"
        if seconds > 0
        else f"in {duration(-int(seconds))}"
    )
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(at.isoformat(), at, text)


def absolute(value: datetime | str | None) -> str | Markup:
    """Format a time in UTC."""
    if value is None:
        return _ABSENT
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return f"{at:%Y-%m-%d %H:%M:%S}"


def extended_json(value: object) -> str:
    """Encode a value for a hidden field of a form."""
    return json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS)


def key_text(key: Mapping[str, Any]) -> str:
    """Format a shard key or an index for people."""
    return ", ".join(f"{name}: {_direction(value)}" for name, value in key.items())


def _direction(value: object) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, int | float) else str(value)


def dict_with(value: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings."""
    return {**value, **more}


def data(value: object) -> str:
    """Encode a value for an attribute that a script reads."""
    return json.dumps(value, separators=(",", ":"))


_FILTERS: Final = {
    "number": number,
    "size": size,
    "percent": percent,
    "duration": duration,
    "time": time_tag,
    "absolute": absolute,
    "ejson": extended_json,
    "key": key_text,
    "short": short_text,
    "shell": shell_text,
    "data": data,
    "dict_with": dict_with,
}
