"""``validate`` of a collection, merged from its shards' replies."""

import pytest

from shardwright.router.ddl.merged_replies import merge_validation
from shardwright.wire.errors import CommandError
from tests.router.ddl.replies import failed, succeeded


def test_valid_everywhere() -> None:
    merged = merge_validation([succeeded("a", valid=True, nrecords=3), succeeded("b", valid=True)])
    assert merged == {
        "valid": True,
        "raw": {"a": {"valid": True, "nrecords": 3, "ok": 1.0}, "b": {"valid": True, "ok": 1.0}},
    }


def test_invalid_on_one_shard() -> None:
    assert merge_validation([succeeded("a", valid=True), succeeded("b", valid=False)])["valid"] is False


def test_error_shows_what_the_others_said() -> None:
    with pytest.raises(CommandError, match="does not exist") as raised:
        merge_validation([succeeded("a", valid=True), failed("b", 26, "it does not exist")])
    assert raised.value.code == 26
    assert raised.value.extra["raw"]["a"] == {"valid": True, "ok": 1.0}
