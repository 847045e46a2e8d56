"""``logRotate`` for a sidecar: clients see it and its mongod as one server, so both rotate their logs."""

from typing import Final

from shardwright.daemon.log_rotation import rotate_logs_for_client
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

LOG_ROTATE: Final = "logRotate"


async def rotate_both_logs(upstream: Upstream, request: Request) -> bytes | None:
    """Let the mongod check the command and rotate its log, then rotate the daemon's. Returns the mongod's reply.

    Raises:
        CommandError: FileRenameFailed, the daemon's log could not be rotated; the mongod's was.
        BackendError: the mongod is gone.
    """
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if reply is None or decode_document(OpMsg(reply).body)["ok"]:
        rotate_logs_for_client()
    return reply
