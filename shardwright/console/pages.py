"""The pages: each shows the data of an endpoint of the API with a template."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from shardwright.console import balancer as balancer_view
from shardwright.console import collections as collections_view
from shardwright.console import explaining, operations, overview, security
from shardwright.console.actions import ACTIONS, Action, ActionFault, perform
from shardwright.console.api import chunks, heat
from shardwright.console.calls import Call
from shardwright.console.drawing import MODES
from shardwright.console.heat_map import MEASURES, WINDOWS
from shardwright.console.reader import Refused, maybe
from shardwright.console.rendering import Renderer
from shardwright.console.shell_syntax import SyntaxFault

_MEASURED_MAX: Final = 60


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
    chunk_map = await collections_view.chunk_map(call.session.reader, namespace, call.number("back") or 0)
    changes = await maybe(collections_view.changes(call.session.reader, namespace), {"changes": []}, [])
    return await renderer.page(
        "collection.html",
        "Collections",
        call.session,
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
    found = await chunks(call)
    rights = await call.session.rights()
    return await renderer.page(
        "chunks.html", "Collections", call.session, rights=rights, data=found, measured=bool(call.number("measure"))
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
    found = await operations.operations(reader, call.sampler)
    current = await maybe(
        operations.current_operations(reader, rights, own=bool(call.number("own"))),
        {"ofAllUsers": False, "operations": [], "hidden": 0},
        found["refusals"],
    )
    return await renderer.page(
        "operations.html",
        "Operations",
        call.session,
        rights=rights,
        data=found,
        current=current,
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


def _action(call: Call) -> Action:
    action = ACTIONS.get(call.required("action"))
    if action is None:
        raise ActionFault("there is no such action")
    action.check(call.given)
    return action


async def _confirm(call: Call, renderer: Renderer) -> Response:
    action, rights = _action(call), await call.session.rights()
    given = {name: call.given[name] for name in action.arguments}
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
)
"""The pages that only read."""

FORMS: Final = (Page("/why", "Why did it go there?", _why), Page("/act", "Confirm", _act))
"""The addresses of forms."""
