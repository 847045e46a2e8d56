"""Fields with which the servers of a cluster tell each other what users must not tell them. Pure.

Shards believe whatever a router sends, because it is a part of the cluster; so no such field of a user may pass. The
router itself tells them which users may write while the writes of users are blocked.
"""

from typing import Final

from shardwright.daemon.privileges import CLUSTER, Privileges
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_elements
from shardwright.wire.request import Request

_AUDIT: Final = b"$audit"
_BYPASS: Final = b"mayBypassWriteBlocking"
_UNAUTHORIZED_BYPASS: Final = 6317500

_INTERNAL: Final = frozenset(
    {
        *(
            _AUDIT,
            _BYPASS,
            b"$configTime",
            b"$topologyTime",
            b"$replData",
            b"$oplogQueryData",
            b"$fromSibling",
            b"term",
        ),
        *(b"shardVersion", b"databaseVersion", b"involvedNamespaces", b"coordinator", b"mayChangeOwner"),
        b"clientSession",
        *(b"fromMigrate", b"runtimeConstants"),
    }
)
"""Of further ones, such as ``fromMongos``, mongos tells users that it does not know them."""

_BYPASSING: Final = encode_elements({_BYPASS.decode(): True})
_BLOCKED: Final = encode_elements({_BYPASS.decode(): False})


def has_internal_fields(request: Request) -> bool:
    """Whether a request has a field that only the cluster itself may send."""
    return not _INTERNAL.isdisjoint(request.fields)


def refusal_of_internal_fields(request: Request) -> CommandError | None:
    """The error that MongoDB has for an internal field of a request; None if it has none of its own."""
    if _AUDIT in request.fields:
        return CommandError(ErrorCode.Unauthorized, "Unauthorized use of impersonation metadata.")
    if _BYPASS in request.fields:
        return CommandError(
            _UNAUTHORIZED_BYPASS, "Client is not properly authorized to propagate mayBypassWriteBlocking"
        )
    return None


def write_block_element(privileges: Privileges) -> bytes:
    """What tells shards whether a user may write while the writes of users are blocked."""
    return _BYPASSING if privileges.allow("bypassWriteBlockingMode", CLUSTER) else _BLOCKED
