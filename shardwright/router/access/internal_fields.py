"""Fields of requests that only members of the cluster may send.

With access control on, a request of a user with such a field is refused. An open cluster cannot distinguish a
member from a client, but members send none of these fields to a router, except for `BYPASS`.
`without_internal_fields` keeps the fields of clients away from the shards, which would take them for the router's own.
Its stage is composed only for requests with such a field, so that other requests do no work for it.
"""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.request import Request
from shardwright.wire.trace_context import TRACE_CONTEXT

_AUDIT: Final = b"$audit"
BYPASS: Final = b"mayBypassWriteBlocking"
_FROM_SIBLING: Final = b"$fromSibling"
_RUNTIME_CONSTANTS: Final = b"runtimeConstants"
_UNAUTHORIZED_BYPASS: Final = 6317500

_GENERIC: Final = (
    *(_AUDIT, b"$configTime", b"$topologyTime", b"$replData", b"$oplogQueryData"),
    *(b"shardVersion", b"databaseVersion", b"coordinator"),
)
"""Fields that MongoDB accepts in any command; mongos does not forward them."""

_OF_REPLICATION: Final = (("find", b"term"), ("getMore", b"term"), ("getMore", b"lastKnownCommittedOpTime"))
"""Fields, by command, for reads of the oplog within a replica set. A mongod adopts the term of any sender."""

_UNKNOWN: Final = (b"clientSession", b"fromMigrate", b"involvedNamespaces", b"mayChangeOwner")
"""Shardwright's own fields, which mongos does not know."""

_NO_RUNTIME_CONSTANTS: Final = {"find": 51202, "update": 51195, "delete": 51195, "findAndModify": 51196}
"""Error codes by command. Aggregations have their own check, in MongoDB's order of checks."""

_INTERNAL: Final = frozenset(
    {
        *(*_GENERIC, *_UNKNOWN, BYPASS, _FROM_SIBLING, _RUNTIME_CONSTANTS, TRACE_CONTEXT),
        *(name for _, name in _OF_REPLICATION),
    }
)
"""Further internal fields, such as ``fromMongos``, are missing here because mongos itself refuses them as unknown."""

KEPT_FROM_SHARDS: Final = tuple(sorted(_INTERNAL - {BYPASS, TRACE_CONTEXT}))
"""Fields of clients that no shard of an open cluster may receive.

Every client of an open cluster may bypass the user write block. Another stage refuses the trace context.
"""


def has_internal_fields(request: Request) -> bool:
    """Whether a request has a field that only servers of the cluster may send."""
    return not _INTERNAL.isdisjoint(request.fields)


def refusal_of_internal_fields(request: Request) -> CommandError | None:
    """Return MongoDB's specific error for an internal field of a request; None if MongoDB has none."""
    if _AUDIT in request.fields:
        return CommandError(ErrorCode.Unauthorized, "Unauthorized use of impersonation metadata.")
    if BYPASS in request.fields:
        return CommandError(
            _UNAUTHORIZED_BYPASS, "Client is not properly authorized to propagate mayBypassWriteBlocking"
        )
    return None


def without_internal_fields(request: Request, command: str, *, is_local: bool) -> Request:
    """Remove the internal fields of a request in an open cluster, or refuse them, as mongos does.

    Args:
        command: the command, without aliases.
        is_local: whether the sender may be another process of this router.

    Raises:
        CommandError: 40415 for a field that mongos does not know; 51195, 51196 or 51202 for ``runtimeConstants``.
    """
    fields = request.fields
    for name in _UNKNOWN:
        if name in fields:
            raise unknown_field(f"{command}.{name.decode()}")
    if _RUNTIME_CONSTANTS in fields and command in _NO_RUNTIME_CONSTANTS:
        raise CommandError(_NO_RUNTIME_CONSTANTS[command], "Cannot specify runtime constants option to a mongos")
    of_command = [name for owner, name in _OF_REPLICATION if owner == command]
    return request.without((*_GENERIC, *of_command, *(() if is_local else (_FROM_SIBLING,))))
