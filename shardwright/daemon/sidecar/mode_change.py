"""``setParameter: 1, clusterAuthMode`` at a sidecar: its mongod decides, and the daemon follows it."""

from typing import Final

from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH

MODE: Final = "clusterAuthMode"


async def change_mode_of_both(upstream: Upstream, request: Request) -> bytes | None:
    """Pass a ``setParameter`` on, and have the daemon take the mode that its mongod has taken; returns the reply.

    Raises:
        CommandError: BadValue, the daemon cannot take the mode, and the mongod is not asked.
        BackendError: the mongod is gone.
    """
    mode = request.get(MODE.encode())
    if mode is not None:
        CLUSTER_AUTH.check_ability(mode)
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if mode is not None and reply is not None and decode_document(OpMsg(reply).body)["ok"]:
        CLUSTER_AUTH.adopt_mode(mode)
    return reply
