"""The pages: each renders the data of an API endpoint with a template, and formats its values for people."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

from bson import json_util
from bson.datetime_ms import DatetimeMS
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from shardwright.console import balancer as balancer_view
from shardwright.console import collections as collections_view
from shardwright.console import drawing, explaining, operations, overview, security
from shardwright.console.actions import ACTIONS, Action, ActionFault, perform
from shardwright.console.api import ENDPOINTS, chunks, heat, shapes
from shardwright.console.drawing import MODES
from shardwright.console.dry_runs import dry_run
from shardwright.console.heat_map import MEASURES, WINDOWS
from shardwright.console.operations import charts, route_text
from shardwright.console.reader import Refused, maybe
from shardwright.console.sessions import Call, Rights, Session
from shardwright.console.settings import STATIC, TEMPLATES, Settings
from shardwright.console.shell_syntax import SyntaxFault, shell_text, short_text

_NAVIGATION: Final = (
    ("/", "Overview"),
    ("/collections", "Collections"),
    ("/heat", "Heat map"),
    ("/operations", "Operations"),
    ("/balancer", "Balancer"),
    ("/security", "Security and health"),
    ("/why", "Why did it go there?"),
)

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_ABSENT: Final = Markup('<span class="muted">&ndash;</span>')

_MEASURED_MAX: Final = 60


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
            cache_size=-1,
        )
        self._environment.filters.update(_FILTERS)
        self._environment.globals.update(
            title=settings.title,
            navigation=_NAVIGATION,
            drawing=drawing,
            actions=ACTIONS,
            link=link,
            asset=partial(_asset, _fingerprints()),
            colour=drawing.colour,
            shell=shell_text,
            route_text=route_text,
            charts=charts,
        )
        # Templates that an upgrade replaces under a running console would not fit its code.
        for name in self._environment.list_templates():
            self._environment.get_template(name)

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


def known_sum(documents: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Add up the values of a field that are not None; return None if there are none."""
    values = [each[name] for each in documents if each[name] is not None]
    return sum(values) if values else None


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


def time_tag(value: datetime | DatetimeMS | str | None, now: datetime | None = None) -> str | Markup:
    """Format a time as its distance from now, with the absolute time as title."""
    if value is None:
        return _ABSENT
    if isinstance(value, DatetimeMS):
        return shell_text(value)
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


def absolute(value: datetime | DatetimeMS | str | None) -> str | Markup:
    """Format a time in UTC."""
    if value is None:
        return _ABSENT
    if isinstance(value, DatetimeMS):
        return shell_text(value)
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
    "known": known_sum,
    "short": short_text,
    "shell": shell_text,
    "data": data,
}


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        title: its name in the navigation.
    """

    path: str
    title: str
    answer: Callable[[Call, Renderer], Awaitable[Response]]


async def _overview(call: Call, renderer: Renderer) -> Response:
    found = await overview.overview(call.session.reader, call.sampler, call.settings)
    return await renderer.page("overview.html", "Overview", call.session, data=found)


async def _collections(call: Call, renderer: Renderer) -> Response:
    found = await collections_view.collections(call.session.reader)
    return await renderer.page("collections.html", "Collections", call.session, data=found)


async def _collection(call: Call, renderer: Renderer) -> Response:
    namespace = call.required("ns")
    mode = call.given.get("colour", "shard")
    found = await collections_view.collection(call.session.reader, namespace)
    chunk_map = await collections_view.chunk_map(
        call.session.reader, namespace, call.number("back") or 0, measured=mode == "size"
    )
    changes = await maybe(collections_view.changes(call.session.reader, namespace), {"changes": []}, [])
    return await renderer.page(
        "collection.html",
        "Collections",
        call.session,
        rights=await call.session.rights(),
        data=found,
        map=chunk_map,
        modes=MODES,
        mode=mode if mode in MODES else "shard",
        changes=[each for each in changes["changes"] if not each["what"].endswith(_STEPS)][:_CHANGES_SHOWN],
    )


_CHANGES_SHOWN: Final = 40

_STEPS: Final = (".start", ".from", ".to")
"""Endings of the events that a move has besides its commit."""


async def _chunks(call: Call, renderer: Renderer) -> Response:
    rights = await call.session.rights()
    found, use = await asyncio.gather(chunks(call), operations.use_of(call.session.reader, rights, call.required("ns")))
    return await renderer.page(
        "chunks.html",
        "Collections",
        call.session,
        rights=rights,
        data=found,
        use=use,
        measured=bool(call.number("measure")),
    )


async def _heat(call: Call, renderer: Renderer) -> Response:
    known = await collections_view.collections(call.session.reader)
    names = [each["ns"] for each in known["collections"] if not each["ns"].startswith("config.")]
    found: dict[str, Any] | None = None
    if names:
        found = await heat({**call.given, "ns": call.given.get("ns") or names[0]}, call)
    return await renderer.page(
        "heat.html", "Heat map", call.session, data=found, names=names, measures=MEASURES, windows=WINDOWS
    )


async def _operations(call: Call, renderer: Renderer) -> Response:
    reader, rights = call.session.reader, await call.session.rights()
    found, frequent, current = await asyncio.gather(
        operations.operations(reader, call.sampler),
        shapes(call),
        operations.current_operations(reader, rights, own=bool(call.number("own"))),
    )
    for each in (*frequent["refusals"], *current["refusals"]):
        if each not in found["refusals"]:
            found["refusals"].append(each)
    return await renderer.page(
        "operations.html",
        "Operations",
        call.session,
        rights=rights,
        data=found,
        current=current,
        frequent=frequent,
        orders=operations.ORDERS,
        own=bool(call.number("own")),
    )


async def _balancer(call: Call, renderer: Renderer) -> Response:
    found = await balancer_view.balancer(call.session.reader, call.sampler, call.settings)
    rights = await call.session.rights()
    return await renderer.page("balancer.html", "Balancer", call.session, rights=rights, data=found)


async def _security(call: Call, renderer: Renderer) -> Response:
    found = await security.security(call.session.reader, call.sampler, call.settings)
    checked: dict[str, Any] | None = None
    if call.number("check"):
        checked = await maybe(security.consistency(call.session.reader), None, found["refusals"])
    rights = await call.session.rights()
    return await renderer.page(
        "security.html", "Security and health", call.session, rights=rights, data=found, checked=checked
    )


async def _bundle(call: Call, _renderer: Renderer) -> Response:
    found = await security.support_bundle(call.session.reader, call.sampler, call.settings)
    name = f"shardwright-support-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz"
    return Response(
        found, media_type="application/gzip", headers={"content-disposition": f'attachment; filename="{name}"'}
    )


_EXAMPLE: Final = "db.orders.find({ customer: 42 })"


async def _why(call: Call, renderer: Renderer) -> Response:
    text, db = call.given.get("text", ""), call.given.get("db", "")
    found, error = None, ""
    if text:
        try:
            found = await explaining.explained(call.session.reader, text, db or "test")
        except (SyntaxFault, Refused) as fault:
            error = str(fault)
    names = await maybe(collections_view.collections(call.session.reader), {"collections": []}, [])
    return await renderer.page(
        "why.html",
        "Why did it go there?",
        call.session,
        status=400 if error else 200,
        data=found,
        text=text,
        db=db,
        error=error,
        example=_EXAMPLE,
        databases=sorted({each["ns"].partition(".")[0] for each in names["collections"]} - {"config"}),
    )


async def _api(call: Call, renderer: Renderer) -> Response:
    return await renderer.page("api.html", "API", call.session, endpoints=ENDPOINTS)


def _action(call: Call) -> Action:
    action = ACTIONS.get(call.required("action"))
    if action is None:
        raise ActionFault("there is no such action")
    action.check(call.given)
    return action


async def _confirm(call: Call, renderer: Renderer) -> Response:
    action, rights = _action(call), await call.session.rights()
    given = {name: call.given[name] for name in action.arguments}
    expected = await dry_run(call.session.reader, action.name, given)
    return await renderer.page(
        "confirm.html",
        action.title,
        call.session,
        action=action,
        given=given,
        may=action.needs(rights, given),
        effect=action.effect(given),
        command=action.shell(given),
        back=action.leads_to(given),
        expected=expected,
    )


async def _act(call: Call, renderer: Renderer) -> Response:
    action = _action(call)
    try:
        await perform(call.session, action, call.given, call.remote)
    except Refused as refused:
        return await renderer.page(
            "error.html",
            action.title,
            call.session,
            status=503 if refused.is_away else 409,
            error=f"{action.title} failed: {refused}",
        )
    target = action.leads_to(call.given)
    sign = "&" if "?" in target else "?"
    return RedirectResponse(f"{target}{sign}{urlencode({'done': action.name})}", status_code=303)


PAGES: Final = (
    Page("/", "Overview", _overview),
    Page("/collections", "Collections", _collections),
    Page("/collection", "Collections", _collection),
    Page("/chunks", "Collections", _chunks),
    Page("/heat", "Heat map", _heat),
    Page("/operations", "Operations", _operations),
    Page("/balancer", "Balancer", _balancer),
    Page("/security", "Security and health", _security),
    Page("/support-bundle", "Security and health", _bundle),
    Page("/why", "Why did it go there?", _why),
    Page("/act", "Confirm", _confirm),
    Page("/api", "API", _api),
)
"""The pages that only read."""

FORMS: Final = (Page("/why", "Why did it go there?", _why), Page("/act", "Confirm", _act))
"""The addresses of forms."""
