"""``rotateCertificates`` for a sidecar: clients see it and its mongod as one server, so both read their files again."""

from shardwright.daemon.certificate_rotation import rotate_certificates
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request


async def rotate_both_certificates(upstream: Upstream, request: Request) -> bytes | None:
    """Let the mongod check the command and read its files, then read the daemon's. Returns the mongod's reply.

    Raises:
        CommandError: InvalidSSLConfiguration, the daemon's cannot be used; the mongod's were.
        BackendError: the mongod is gone.
    """
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if reply is None or decode_document(OpMsg(reply).body)["ok"]:
        rotate_certificates()
    return reply
