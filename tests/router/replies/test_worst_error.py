"""The choice among several shards' errors."""

import bson
import pytest

from shardwright.router.replies.shard_reply import JoinNeededError, ShardReply, raise_worst
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply


def refusal(**extra: str) -> ShardReply:
    """A shard's refusal to run a pipeline."""
    error = CommandError(ErrorCode.CommandNotSupported, "it is sharded", extra=extra)
    return ShardReply("shard0", "host:1", reply(1, bson.encode(error.reply())))


def test_a_shard_that_names_the_collection_asks_for_a_join() -> None:
    with pytest.raises(JoinNeededError) as failure:
        raise_worst([refusal(involvedNamespace="db.sharded")])
    assert (failure.value.code, failure.value.elsewhere) == (ErrorCode.CommandNotSupported, frozenset())


def test_any_other_refusal_is_the_error() -> None:
    with pytest.raises(CommandError) as failure:
        raise_worst([refusal()])
    assert type(failure.value) is CommandError
