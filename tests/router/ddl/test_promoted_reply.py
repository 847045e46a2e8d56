"""Replies that repeat the first shard's fields for all of them."""

import pytest

from shardwright.router.ddl.merged_replies import merge_promoted
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from tests.router.ddl.replies import failed, succeeded


def test_first_reply_is_promoted_and_all_are_shown() -> None:
    merged = merge_promoted([succeeded("a", filters=[1]), succeeded("b", filters=[2])])
    assert merged == {"filters": [1], "a": {"filters": [1], "ok": 1.0}, "b": {"filters": [2], "ok": 1.0}}


def test_error_of_the_first_shard_is_that_of_all() -> None:
    with pytest.raises(CommandError, match="no") as raised:
        merge_promoted([failed("a", 2, "no"), succeeded("b")])
    assert raised.value.extra["b"] == {"ok": 1.0}


def test_error_of_another_shard_is_only_shown() -> None:
    assert merge_promoted([succeeded("a"), failed("b", 2, "no")])["b"]["errmsg"] == "no"


def test_shard_out_of_reach() -> None:
    with pytest.raises(CommandError, match="failed on: b :: caused by :: gone"):
        merge_promoted([succeeded("a"), ShardReply.failed("b", CommandError(6, "gone"))])
