"""The shards' explanations, and the fields of an ``explain`` about the router."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shardwright.router.context.options import MONGODB_VERSION
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import scatter
from shardwright.router.reads.explain import ShardExplain, wrapped
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.shard_reply import answer_in, raise_worst
from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append

_OUTER_FIELDS: Final = (b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db")
"""Fields of the client's command that are copied to a shard's ``explain``."""


def _as_it_is(_error: CommandError) -> bool:
    return False


async def explained_by(
    operation: Operation,
    inner: bytes,
    verbosity: str,
    elements: Mapping[str, bytes],
    *,
    names_shard: Callable[[CommandError], bool] = _as_it_is,
) -> list[ShardExplain]:
    """Collect the shards' explanations of a command.

    Args:
        elements: the shards to query, each with raw elements to add, such as the versions.
        names_shard: whether the client's error names the shard of this error.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    request = operation.request
    outer = wrapped(inner, verbosity, raw_elements(request, _OUTER_FIELDS))
    frames = {
        shard: op_msg(append(outer, each), request_id=request.message.request_id) for shard, each in elements.items()
    }
    replies = await scatter(operation, frames, preference=operation.read_preference, may_repeat=True)
    try:
        raise_worst(replies)
    except CommandError as error:
        shard = next((reply.shard_id for reply in replies if reply.error is error), None)
        if shard is None or has_category(error.code, Category.NETWORK) or not names_shard(error):
            raise
        message = f"Explain command on shard {shard} failed :: caused by :: {error.message}"
        raise CommandError(error.code, message, labels=error.labels, extra=error.extra) from error
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
    """Return the fields about the server; the parameters are the shards', because they limit the shards' stages."""
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
