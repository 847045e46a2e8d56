"""The write concern with which a recipient writes documents: MongoDB's ``secondaryThrottle``."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.write_concern import LOCAL_WRITE_CONCERN
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_WAIT_MS: Final = 60_000
"""MongoDB's limit for the wait after one batch; after it the migration goes on."""


def effective_write_concern(context: ShardContext, request: ReceiveRequest) -> Mapping[str, Any]:
    """The write concern of the transactions in which documents are written.

    Without ``secondaryThrottle`` that is the primary's acknowledgement alone. With it, it is the requested write
    concern or, by default, two members if the set has more than one.

    Raises:
        CommandError: UnsatisfiableWriteConcern, the set has fewer members than requested.
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
