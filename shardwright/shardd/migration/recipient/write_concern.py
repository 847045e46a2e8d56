"""With which write concern a recipient writes documents: MongoDB's ``secondaryThrottle``."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import LOCAL_WRITE_CONCERN
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_WAIT_MS: Final = 60_000
"""MongoDB's limit for waiting after one batch, after which the migration goes on all the same."""


def effective_write_concern(context: ShardContext, request: ReceiveRequest) -> Mapping[str, Any]:
    """The write concern of the transactions in which documents are written.

    Without throttle, and in a set that has no secondary to wait for, that of the primary alone; with it the one that
    was asked for, by default two members.

    Raises:
        CommandError: UnsatisfiableWriteConcern, the set has fewer members than were asked for.
    """
    if not request.secondary_throttle:
        return LOCAL_WRITE_CONCERN
    hello = context.sidecar.mirror.hello or {}
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    if not request.write_concern:
        return {"w": 2, "wtimeout": _WAIT_MS} if members > 1 else LOCAL_WRITE_CONCERN
    wanted = request.write_concern.get("w", 1)
    if isinstance(wanted, int) and wanted > members:
        raise CommandError(ErrorCode.UnsatisfiableWriteConcern, "Not enough data-bearing nodes")
    concern = {name: value for name, value in request.write_concern.items() if name in ("w", "j", "wtimeout")}
    return {"wtimeout": _WAIT_MS, **concern}
