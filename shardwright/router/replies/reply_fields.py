"""Which fields of a shard's reply are part of its answer."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.router.replies.shard_reply import INTERNAL_REPLY_FIELDS, ShardReply
from shardwright.wire.reply_times import TIMES

_NOT_ANSWER: Final = {*TIMES} | {name.decode(errors="replace") for name in INTERNAL_REPLY_FIELDS}


def answer_of(reply: ShardReply) -> dict[str, Any]:
    """The reply of a shard with ``ok``, less the times and what servers send only to each other.

    An error in place of a reply is shown as the reply that it would have been.
    """
    if not reply.frame:
        assert reply.error is not None
        return reply.error.reply()
    return _answer_in(reply.document)


def answer_in(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A successful reply of a config server as the beginning of the router's own."""
    return without_ok(_answer_in(reply))


def _answer_in(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in _NOT_ANSWER}


def without_ok(answer: dict[str, Any]) -> dict[str, Any]:
    """``answer`` as the beginning of a reply that gets an ``ok`` of its own."""
    return {name: value for name, value in answer.items() if name != "ok"}
