"""The ``raw`` reply of commands that go to several shards."""

import pytest

from shardwright.router.ddl.merged_replies import merge_raw
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.router.ddl.replies import failed, succeeded

STRINGS = {"a": "a/a.example:1", "b": "b/b.example:1", "c": "c/c.example:1"}


def test_all_succeed() -> None:
    replies = [succeeded("a", numIndexesAfter=2), succeeded("b", numIndexesAfter=3)]
    assert merge_raw(replies, STRINGS) == {
        "raw": {"a/a.example:1": {"numIndexesAfter": 2, "ok": 1.0}, "b/b.example:1": {"numIndexesAfter": 3, "ok": 1.0}}
    }


def test_first_error_is_that_of_the_whole_command() -> None:
    replies = [
        succeeded("a", n=1),
        failed("b", ErrorCode.IndexOptionsConflict, "first"),
        failed("c", ErrorCode.CannotCreateIndex, "second"),
    ]
    with pytest.raises(CommandError) as raised:
        merge_raw(replies, STRINGS)
    assert raised.value.reply() == {
        "ok": 0.0,
        "errmsg": "first",
        "code": 85,
        "codeName": "IndexOptionsConflict",
        "raw": {
            "a/a.example:1": {"n": 1, "ok": 1.0},
            "b/b.example:1": {"ok": 0.0, "errmsg": "first", "code": 85, "codeName": "IndexOptionsConflict"},
            "c/c.example:1": {"ok": 0.0, "errmsg": "second", "code": 67, "codeName": "CannotCreateIndex"},
        },
    }


def test_shard_that_gave_no_reply_is_shown_with_its_error() -> None:
    unreachable = ShardReply.failed("b", CommandError(ErrorCode.HostUnreachable, "gone"))
    with pytest.raises(CommandError, match="gone") as raised:
        merge_raw([succeeded("a"), unreachable], STRINGS)
    assert raised.value.extra["raw"]["b/b.example:1"] == {
        "ok": 0.0,
        "errmsg": "gone",
        "code": 6,
        "codeName": "HostUnreachable",
    }


def test_removed_shard_does_not_count() -> None:
    removed = ShardReply.failed("b", CommandError(ErrorCode.ShardNotFound, "no b"))
    merged = merge_raw([succeeded("a"), removed], STRINGS)
    assert merged["raw"]["b/b.example:1"]["code"] == 70


def test_removed_shards_count_when_there_are_no_others() -> None:
    removed = ShardReply.failed("b", CommandError(ErrorCode.ShardNotFound, "no b"))
    with pytest.raises(CommandError, match="no b"):
        merge_raw([removed], STRINGS)


def test_first_write_concern_error_is_promoted() -> None:
    late = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "late", "errInfo": {"wtimeout": True}}
    replies = [succeeded("a"), succeeded("b", writeConcernError=late), succeeded("c", writeConcernError=late)]
    assert merge_raw(replies, STRINGS)["writeConcernError"] == {**late, "errmsg": "late at b"}


def test_write_concern_error_stands_beside_another_error() -> None:
    late = {"code": 64, "errmsg": "late"}
    with pytest.raises(CommandError) as raised:
        merge_raw([succeeded("a", writeConcernError=late), failed("b", 67, "no")], STRINGS)
    assert raised.value.extra["writeConcernError"]["errmsg"] == "late at a"
