"""Versions: their order, their wire formats, and their cached bytes."""

from typing import Any
from uuid import UUID

import bson
import pytest
from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.versions import (
    IGNORED,
    UNSHARDED,
    ChunkVersion,
    DatabaseVersion,
    database_version_element,
    shard_version_element,
)
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError

EPOCH = ObjectId("6b003c51f6889f2ffd8ef265")
TIME = Timestamp(1795177553, 7)
uint32 = st.integers(0, 2**32 - 1)
versions = st.builds(
    ChunkVersion,
    uint32,
    uint32,
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.builds(Timestamp, uint32, uint32),
)


def version(major: int, minor: int, timestamp: Timestamp = TIME) -> ChunkVersion:
    return ChunkVersion(major, minor, EPOCH, timestamp)


def parse(value: object) -> ChunkVersion:
    document = bson.encode({"shardVersion": value})
    return ChunkVersion.from_span(document, rawbson.index(document)[b"shardVersion"])


@given(versions)
def test_the_element_is_what_bson_encodes(each: ChunkVersion) -> None:
    assert rawbson.from_elements(shard_version_element(each)) == bson.encode({"shardVersion": each.to_document()})
    assert parse(each.to_document()) == each


@given(versions)
def test_any_order_of_fields_and_the_array_form_are_read(each: ChunkVersion) -> None:
    assert parse({"v": each.lastmod, "e": each.epoch, "t": each.timestamp}) == each
    assert parse([each.lastmod, each.epoch, each.timestamp]) == each


def test_the_same_bytes_give_the_same_object() -> None:
    assert parse(version(1, 2).to_document()) is parse(version(1, 2).to_document())


@pytest.mark.parametrize(
    "value",
    [
        5,
        [Timestamp(1, 0), EPOCH],
        {"e": EPOCH, "t": TIME},
        {"v": 1, "e": EPOCH, "t": TIME},
        {"v": TIME, "e": "x", "t": TIME},
        {"v": TIME, "e": EPOCH, "t": None},
    ],
)
def test_malformed_versions(value: Any) -> None:  # noqa: ANN401
    with pytest.raises(CommandError) as caught:
        parse(value)
    assert caught.value.code == 14


def test_order_within_a_collection() -> None:
    assert version(1, 9).is_older_than(version(2, 0))
    assert version(2, 0).is_older_than(version(2, 1))
    assert not version(2, 1).is_older_than(version(2, 1))
    assert version(2, 1).is_older_or_equal(version(2, 1))


def test_versions_of_different_timestamps_have_no_order() -> None:
    other = version(2, 0, Timestamp(1, 1))
    assert not version(1, 0).is_older_than(other)
    assert not other.is_older_than(version(1, 0))
    assert not version(2, 0).is_write_compatible_with(other)


def test_write_compatibility_is_about_the_major_part() -> None:
    assert version(2, 0).is_write_compatible_with(version(2, 7))
    assert not version(2, 0).is_write_compatible_with(version(3, 0))
    assert not version(0, 0).is_write_compatible_with(version(1, 0))
    other_epoch = ChunkVersion(2, 0, ObjectId(), TIME)
    assert version(2, 0).is_write_compatible_with(other_epoch)


def test_special_versions() -> None:
    assert bson.decode(UNSHARDED.raw) == {"t": Timestamp(0, 0), "e": ObjectId(bytes(12)), "v": Timestamp(0, 0)}
    assert IGNORED.timestamp == Timestamp(2**32 - 1, 2**32 - 1)
    assert not version(0, 0).is_set


def test_text_is_as_in_the_changelog() -> None:
    assert str(version(1, 0)) == "1|0||6b003c51f6889f2ffd8ef265||Timestamp(1795177553, 7)"


def test_raising() -> None:
    assert version(1, 7).with_major_raised() == version(2, 0)
    assert version(1, 7).with_minor_raised(2) == version(1, 9)


DATABASE = DatabaseVersion(UUID(int=7), TIME, 3)


def parse_database(value: object) -> DatabaseVersion:
    document = bson.encode({"databaseVersion": value})
    return DatabaseVersion.from_span(document, rawbson.index(document)[b"databaseVersion"])


def test_database_version_element() -> None:
    element = database_version_element(DATABASE)
    assert rawbson.from_elements(element) == bson.encode({"databaseVersion": DATABASE.to_document()})
    assert parse_database(DATABASE.to_document()) == DATABASE


def test_database_versions_compare_by_timestamp_and_last_mod() -> None:
    moved = DATABASE.with_last_mod_raised()
    assert DATABASE.is_older_than(moved)
    assert not DATABASE.matches(moved)
    assert DATABASE.matches(DatabaseVersion(UUID(int=8), TIME, 3))
    assert moved.is_older_than(DatabaseVersion(UUID(int=8), Timestamp(TIME.time, 8), 1))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"timestamp": 1}, 14),
        ({"lastMod": "1"}, 14),
        ({"uuid": Binary(b"x", 4)}, 14),
    ],
)
def test_database_version_of_wrong_types(change: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as caught:
        parse_database(DATABASE.to_document() | change)
    assert caught.value.code == code


def test_database_version_without_timestamp() -> None:
    value = DATABASE.to_document()
    del value["timestamp"]
    with pytest.raises(CommandError) as caught:
        parse_database(value)
    assert caught.value.code == 40414


def test_errors_name_the_types_of_bson() -> None:
    with pytest.raises(CommandError, match="'databaseVersion' is the wrong type 'array', expected type 'object'"):
        DatabaseVersion.from_value([1])
    with pytest.raises(CommandError, match=r"'DatabaseVersion\.uuid' is the wrong type 'null'"):
        DatabaseVersion.from_value({"timestamp": TIME, "lastMod": 1})
    with pytest.raises(CommandError, match="Invalid field 'v' of a chunk version: string is not of type timestamp"):
        parse({"v": "x", "e": EPOCH, "t": TIME})
