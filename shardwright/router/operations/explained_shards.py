"""The explanations of shards, and what an ``explain`` says about the router."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.router.context.version import MONGODB_VERSION
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import scatter
from shardwright.router.reads.explain_reply import ShardExplain
from shardwright.router.reads.explained import wrapped
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.reply_fields import answer_in
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append

_OUTER_FIELDS: Final = (b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db")
"""The fields of the client's command that are copied to a shard's ``explain``."""


async def explained_by(
    operation: Operation, inner: bytes, verbosity: str, elements: Mapping[str, bytes]
) -> list[ShardExplain]:
    """The shards' explanations of a command.

    Args:
        operation: the ``explain``.
        inner: the inner command.
        verbosity: the level of detail.
        elements: the shards to ask, each with the raw elements for it, such as the versions.

    Raises:
        StaleRoutingError: some shard refused the versions.
        CommandError: some shard failed.
    """
    request = operation.request
    outer = wrapped(inner, verbosity, raw_elements(request, _OUTER_FIELDS))
    frames = {
        shard: op_msg(append(outer, each), request_id=request.message.request_id) for shard, each in elements.items()
    }
    replies = await scatter(operation, frames, preference=operation.read_preference, may_repeat=True)
    raise_worst(replies)
    registry = operation.context.shards
    return [
        ShardExplain(
            reply.shard_id,
            (await registry.get(reply.shard_id)).connection_string,
            reply.address,
            answer_in(reply.document),
        )
        for reply in replies
    ]


def about_server(operation: Operation, shards: Sequence[ShardExplain]) -> dict[str, Any]:
    """The fields about the router itself. The parameters limit the shards' stages, so they are the shards'."""
    own = HostAndPort.parse(operation.context.options.address)
    return {
        "serverInfo": {
            "host": own.host,
            "port": own.port,
            "version": MONGODB_VERSION,
            "gitVersion": "unknown",
        },
        **({"serverParameters": shards[0].reply["serverParameters"]} if "serverParameters" in shards[0].reply else {}),
    }
