"""Replies of a mongod that is shutting down.

For a moment such a mongod still calls itself primary, and answers writes with ShutdownInProgress, or with that as their
write concern error. Whoever repeats a retryable write at once gets the same answer again. A mongos is told by the
mongod's own hello to wait for the next primary; here the hello is the daemon's, which learns a moment later.
"""

from typing import Final

import bson

from shardwright.sharding.operation_session import AUTOCOMMIT, TXN_NUMBER
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import INT32, element
from shardwright.wire.request import Request

SECONDS_MAX: Final = 10.0
"""How long a daemon waits for its mongod to end, or to call itself something else."""

_CODE: Final = element(b"code", INT32, int(ErrorCode.ShutdownInProgress).to_bytes(4, "little"))


def tells_of_shutdown(reply: bytes) -> bool:
    """Whether a mongod answers that it is shutting down, by the error of the command or of its write concern."""
    if _CODE not in reply:
        return False
    document = bson.decode(OpMsg(reply).body)
    return ErrorCode.ShutdownInProgress in (document.get("code"), document.get("writeConcernError", {}).get("code"))


def is_retryable_write(request: Request) -> bool:
    """Whether a request may be repeated without being executed twice, because it has a number of its own."""
    return TXN_NUMBER in request.fields and AUTOCOMMIT not in request.fields
