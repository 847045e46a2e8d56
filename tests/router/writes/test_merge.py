"""Errors of several shards, merged for the client."""

from typing import Any

import bson
import pytest

from shardwright.router.writes import outcome
from shardwright.router.writes.batch import WriteKind
from shardwright.router.writes.outcome import (
    BatchOutcome,
    ItemError,
    Upserted,
    WriteReply,
    combined_error,
    error_document,
    merged_write_concern_error,
    with_index,
    with_limited_messages,
)
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import STRING, element, string_value
from tests.router.writes.builders import batch

DUPLICATE = {"index": 3, "code": 11000, "errmsg": "E11000", "keyPattern": {"_id": 1}, "keyValue": {"_id": 5}}


def test_with_index_changes_nothing_else() -> None:
    changed = bson.decode(with_index(bson.encode(DUPLICATE), 70_000))
    assert changed == DUPLICATE | {"index": 70_000}
    assert list(changed) == list(DUPLICATE)


def test_with_index_adds_a_missing_one() -> None:
    assert bson.decode(with_index(bson.encode({"code": 2, "errmsg": "x"}), 4)) == {"index": 4, "code": 2, "errmsg": "x"}


def test_error_document_keeps_extra_fields() -> None:
    error = CommandError(121, "Document failed validation", extra={"errInfo": {"details": 1}})
    assert bson.decode(error_document(error)) == {
        "index": 0,
        "code": 121,
        "errmsg": "Document failed validation",
        "errInfo": {"details": 1},
    }


def test_error_document_has_no_write_concern_error() -> None:
    """A mongod adds one to the error of a killed write; mongos leaves it out."""
    failed = {"ok": 0.0, "errmsg": "interrupted", "code": 11601, "codeName": "Interrupted", "errInfo": {"a": 1}}
    error = CommandError.from_reply({**failed, "writeConcernError": {"code": 11601, "errmsg": "interrupted"}})
    assert bson.decode(error_document(error)) == {
        "index": 0,
        "code": 11601,
        "errmsg": "interrupted",
        "errInfo": {"a": 1},
    }


def test_combined_error_of_one_shard_is_its_own() -> None:
    assert combined_error([bson.encode(DUPLICATE)]) == bson.encode(DUPLICATE)


def test_combined_error_of_agreeing_shards_is_the_first() -> None:
    first, second = bson.encode({"code": 28, "errmsg": "one"}), bson.encode({"code": 28, "errmsg": "two"})
    assert combined_error([first, second]) == first


def test_combined_error_of_different_errors_has_them_as_causes() -> None:
    first, second = {"index": 0, "code": 28, "errmsg": "one"}, {"index": 0, "code": 2, "errmsg": "two"}
    assert bson.decode(combined_error([bson.encode(first), bson.encode(second)])) == {
        "index": 0,
        "code": 65,
        "errmsg": "multiple errors for op : one :: and :: two",
        "errInfo": {"causedBy": [first, second]},
    }


_CONCERN: dict[str, Any] = {
    "code": 100,
    "codeName": "UnsatisfiableWriteConcern",
    "errmsg": "Not enough data-bearing nodes",
    "errInfo": {"writeConcern": {"w": 5, "wtimeout": 10, "provenance": "clientSupplied"}},
}
_DETAILS = '; Error details: { writeConcern: { w: 5, wtimeout: 10, provenance: "clientSupplied" } }'


def test_write_concern_error_of_one_shard_names_it() -> None:
    assert merged_write_concern_error([("s1", bson.encode(_CONCERN))]) == {
        "code": 100,
        "codeName": "UnsatisfiableWriteConcern",
        "errmsg": f"Not enough data-bearing nodes{_DETAILS} at s1",
        "errInfo": {},
    }


def test_write_concern_errors_of_several_shards() -> None:
    both = [("s0", bson.encode(_CONCERN)), ("s1", bson.encode(_CONCERN))]
    assert merged_write_concern_error(both) == {
        "code": 64,
        "codeName": "WriteConcernFailed",
        "errmsg": "multiple errors reported : "
        f"UnsatisfiableWriteConcern: Not enough data-bearing nodes{_DETAILS} at s0 :: and :: "
        f"UnsatisfiableWriteConcern: Not enough data-bearing nodes{_DETAILS} at s1",
        "errInfo": {},
    }


def test_messages_are_left_out_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "ERROR_MESSAGE_BYTES_MAX", 100)
    documents = [bson.encode({"index": n, "code": 2, "errmsg": "x" * 40, "keyValue": {"a": n}}) for n in range(5)]
    limited = [bson.decode(document) for document in with_limited_messages(documents)]
    assert [len(error["errmsg"]) for error in limited] == [40, 40, 40, 0, 0]
    assert [error["keyValue"] for error in limited] == [{"a": n} for n in range(5)]


def outcome_of(reply: WriteReply, count: int) -> BatchOutcome:
    """The outcome of upserts that one shard has executed."""
    statements = [{"q": {"_id": n}, "u": {"$set": {"a": 1}}, "upsert": True} for n in range(count)]
    found = BatchOutcome(batch(WriteKind.UPDATE, statements, ordered=False))
    found.add("s0", list(range(count)), reply)
    for each in reply.errors:
        found.errors[each.index] = each.document
    return found


def duplicate(position: int) -> ItemError:
    key = {"_id": f"{position:08}" + "x" * 1_500}
    error = {"index": 0, "code": 11000, "keyPattern": {"_id": 1}, "keyValue": key, "errmsg": "E11000", "errInfo": key}
    return ItemError(position, 11000, bson.encode(error))


def test_errors_lose_their_details_when_the_reply_would_be_too_large() -> None:
    count = 8_000
    reply = outcome_of(WriteReply(errors=tuple(map(duplicate, range(count)))), count).reply()
    assert len(bson.encode(reply)) <= BSON_OBJECT_BYTES_MAX
    errors = bson.decode(bson.encode(reply))["writeErrors"]
    assert [each["index"] for each in errors] == [*range(count)]
    assert {each["code"] for each in errors} == {11000}
    assert errors[0]["keyValue"] == {"_id": "00000000" + "x" * 1_500}
    assert errors[-1] == {"index": count - 1, "code": 11000, "errmsg": ""}
    whole = sum("keyValue" in each for each in errors)
    assert all(("keyValue" in each) == (position < whole) for position, each in enumerate(errors))
    assert len(bson.encode(reply)) > BSON_OBJECT_BYTES_MAX - 20_000


@pytest.mark.parametrize("has_error", [False, True])
def test_too_many_upserted_ids_are_an_error_of_the_batch(has_error: bool) -> None:
    count = 12_000
    upserted = tuple(Upserted(n, element(b"_id", STRING, string_value("x" * 1_500))) for n in range(count - 1))
    errors = (duplicate(count - 1),) if has_error else ()
    with pytest.raises(CommandError) as raised:
        outcome_of(WriteReply(n=count, upserted=upserted, errors=errors), count).reply()
    assert raised.value.code == 10334
