"""What a ``createIndexes`` asks for, compared with the indexes that a shard has."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

Specification = Mapping[str, Any]

_PASSING: Final = (
    *(Category.NETWORK, Category.NETWORK_TIMEOUT, Category.NOT_PRIMARY),
    *(Category.INTERRUPTION, Category.SHUTDOWN, Category.RETRYABLE),
)


def requested_indexes(request: Request) -> Sequence[Specification]:
    """The specifications in a ``createIndexes``; none if it is malformed, which the shards say."""
    try:
        return [decode_document(specification) for specification in request.documents(b"indexes")]
    except CommandError:
        return []


def may_conflict(requested: Sequence[Specification], existing: Sequence[Specification]) -> bool:
    """Whether a shard may refuse an index because of one that it has: one of the same name or key that is not the same.

    Of options that are left out, or written in another way, only mongod knows whether they make a difference.
    """
    return any(
        (new.get("name") == old["name"] or new.get("key") == old["key"]) and _without_version(new) != dict(old)
        for new in requested
        for old in map(_without_version, existing)
    )


def built_names(reply: ShardReply, requested: Sequence[Specification], existing: Sequence[Specification]) -> list[str]:
    """The names of the indexes that a shard has built for the command, and did not have before.

    None if another client has built some of them meanwhile: it relies on them.

    Args:
        reply: of the shard.
        requested: what the command asks for.
        existing: what the shard had before.
    """
    before, after = reply.get(b"numIndexesBefore"), reply.get(b"numIndexesAfter")
    if reply.error is not None or not isinstance(before, int) or not isinstance(after, int):
        return []
    had = {index["name"] for index in existing}
    names = [index["name"] for index in requested if index["name"] not in had]
    return names if after - before == len(names) else []


def has_built_nothing(reply: ShardReply) -> bool:
    """Whether a shard has answered that it had all of the indexes."""
    return bool(reply.get(b"numIndexesBefore") == reply.get(b"numIndexesAfter"))


def is_for_good(error: CommandError) -> bool:
    """Whether an index could not be built because of what it is or what is stored, rather than of some outage."""
    return not any(has_category(error.code, category) for category in _PASSING)


def _without_version(index: Specification) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name != "v"}
