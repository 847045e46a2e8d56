"""``logRotate`` and ``rotateCertificates`` for a sidecar: clients take it and its mongod for one server; both do it."""

from collections.abc import Callable, Mapping
from typing import Final

from shardwright.daemon.certificate_rotation import ROTATE_CERTIFICATES, rotate_certificates
from shardwright.daemon.log_rotation import rotate_logs_for_client
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

ROTATIONS: Final[Mapping[str, Callable[[], None]]] = {
    "logRotate": rotate_logs_for_client,
    ROTATE_CERTIFICATES: rotate_certificates,
}
"""What the daemon itself does at each of the commands."""


async def rotate_both(upstream: Upstream, request: Request) -> bytes | None:
    """Let the mongod check and execute one of the `ROTATIONS`, then do the daemon's part; returns the mongod's reply.

    Without a reply it is not known whether the client may do this, and the daemon does not.

    Raises:
        CommandError: FileRenameFailed or InvalidSSLConfiguration, the daemon's part failed; the mongod's is done.
        BackendError: the mongod is gone.
    """
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if reply is not None and decode_document(OpMsg(reply).body)["ok"]:
        ROTATIONS[request.name]()
    return reply
