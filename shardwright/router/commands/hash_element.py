"""``_hashBSONElement``: the hash of a value in a hashed shard key or index."""

from typing import Final

from bson.int64 import Int64

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.plain_error import PlainError
from shardwright.sharding.hashing import hash_value
from shardwright.wire.arguments import clamp_int64

_INT32_MAX: Final = (1 << 31) - 1
_INT32_MIN: Final = -(1 << 31)


@command("_hashBSONElement", test_only=True)
async def hash_bson_element(operation: Operation) -> Reply:
    """Returns the hash of a value."""
    request = operation.request
    seed = request.get(b"seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int | float):
        raise _NotSeededError(request.get(b"_hashBSONElement"))
    seed = max(_INT32_MIN, min(_INT32_MAX, clamp_int64(seed)))
    hashed = hash_value(request.body, request.fields[b"_hashBSONElement"], seed)
    return {"key": request.get(b"_hashBSONElement"), "seed": seed, "out": Int64(hashed)}


class _NotSeededError(PlainError):
    """The seed is not a number; the reply has the value nevertheless."""

    def __init__(self, value: object) -> None:
        super().__init__("seed must be a number")
        self._value = value

    def reply(self) -> dict[str, object]:
        """The body of the reply."""
        return {"key": self._value, **super().reply()}
