"""Defaults of read and write concern: reading them again and again, and adding them to requests."""

from typing import Final

import trio

from shardwright.daemon.first_stage import first_stage_names
from shardwright.router.commands.command_registry import Command
from shardwright.router.context.default_concerns import DefaultConcerns
from shardwright.router.context.router_context import RouterContext
from shardwright.router.replies.reply_fields import answer_in
from shardwright.router.transactions.transaction_rules import ENDING
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION
from shardwright.wire.rawbson import append
from shardwright.wire.request import Request

_INTERVAL_SECONDS: Final = 30.0
"""As in MongoDB, where a router may use the former defaults for so long."""

_READ_WITH_DEFAULT: Final = frozenset({"aggregate", "count", "distinct", "find"})
_DEMAND_A_LEVEL: Final = frozenset(
    {b"$changeStream", b"$currentOp", b"$listCachedAndActiveUsers", b"$listLocalSessions", b"$planCacheStats"}
)
"""Stages that can only be read with one level of read concern, whatever the default is."""

_ONLY_WRITES_SOMETIMES: Final = frozenset({"aggregate", "mapReduce"})


async def refresh_default_concerns(context: RouterContext) -> None:
    """Read the defaults from the config servers until cancelled."""

    async def refresh() -> None:
        context.default_concerns.take(answer_in(await context.catalog.command({"getDefaultRWConcern": 1})))

    while True:
        await context.catalog.attempt(refresh)
        await trio.sleep(_INTERVAL_SECONDS)


def with_default_concerns(defaults: DefaultConcerns, entry: Command, request: Request) -> Request:
    """The request with the defaults for what it does not specify; the same object if there is nothing to add."""
    if AUTOCOMMIT in request.fields:
        return _with_defaults_in_transaction(defaults, entry, request)
    elements = b""
    if entry.name in _READ_WITH_DEFAULT and b"readConcern" not in request.fields and _may_have_default(request):
        elements += defaults.read
    if (
        entry.supports_write_concern
        and entry.name not in _ONLY_WRITES_SOMETIMES
        and b"writeConcern" not in request.fields
    ):
        elements += defaults.write
    if not elements:
        return request
    return request.with_body(append(request.body, elements))


def _with_defaults_in_transaction(defaults: DefaultConcerns, entry: Command, request: Request) -> Request:
    """As `with_default_concerns`: the first statement sets the read concern, and the end the write concern."""
    fields = request.fields
    if START_TRANSACTION in fields:
        elements = b"" if b"readConcern" in fields else defaults.read
    else:
        elements = b"" if b"writeConcern" in fields or entry.name not in ENDING else defaults.write
    return request.with_body(append(request.body, elements)) if elements else request


def _may_have_default(request: Request) -> bool:
    """Whether a default read concern applies to a read: not to an explanation, nor to stages that demand a level."""
    if request.get(b"explain"):
        return False
    names = first_stage_names(request)
    return not names or names[0] not in _DEMAND_A_LEVEL
