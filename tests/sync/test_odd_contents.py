"""Documents that Python cannot represent, or that a server would change: their bytes arrive unchanged."""

import struct
from collections.abc import Callable
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import DeleteOne, InsertOne, UpdateOne

from shardwright.wire import rawbson
from tests.sync.conftest import ends_of
from tests.sync.running import Client, Ends, SyncProcess, contents, run_sync
from tests.sync.surviving import SLOW_COPY
from tests.sync.writers import DATABASE

pytestmark = pytest.mark.matrix(share=0.5)

FAR: Final = struct.pack("<q", 2**62)
"""A date long after the year 9999."""

VALUES: Final[dict[str, tuple[int, bytes]]] = {
    "far date": (rawbson.DATE, FAR),
    "text that is not UTF-8": (rawbson.STRING, rawbson.string_value(b"\xff\xfe")),
    "symbol": (rawbson.SYMBOL, rawbson.string_value("a")),
    "pointer": (rawbson.DB_POINTER, rawbson.string_value("db.a") + bytes(12)),
    "code with scope": (rawbson.CODE_WITH_SCOPE, b"\x11\0\0\0" + rawbson.string_value("a()") + b"\5\0\0\0\0"),
    "repeated fields": (rawbson.OBJECT, rawbson.from_elements(b"\x10a\0\1\0\0\0\x10a\0\2\0\0\0")),
    "name that is not UTF-8": (rawbson.OBJECT, rawbson.from_elements(b"\x10\xff\0\1\0\0\0")),
    "old binary": (rawbson.BINARY, b"\x03\0\0\0\x02abc"),
}
OF_VALUES_ONLY: Final = {"undefined": (rawbson.UNDEFINED, b""), "expression": (rawbson.REGEX, b"\xff\0i\0")}


def document(key: tuple[int, bytes], *more: tuple[bytes, tuple[int, bytes]]) -> RawBSONDocument:
    """A document with its fields in order."""
    elements = [rawbson.element(b"_id", *key), *(rawbson.element(name, *value) for name, value in more)]
    return rawbson.raw_document(rawbson.from_elements(b"".join(elements)))


def number(value: int) -> tuple[int, bytes]:
    return rawbson.INT32, struct.pack("<i", value)


def select(key: tuple[int, bytes]) -> RawBSONDocument:
    return rawbson.raw_document(rawbson.wrap_value(*key, name=b"_id"))


def write(client: Client, *writes: Any) -> None:  # noqa: ANN401 - writes of pymongo
    client[DATABASE].odd.bulk_write([*writes])


def wait_equal(ends: Ends, process: SyncProcess) -> None:
    process.wait_followed(ends.source)
    found, wanted = contents(ends.target), contents(ends.source)
    assert found == wanted, (process.lines[-1], process.errors)
    report = run_sync(ends.directory, "verify", process.id)
    assert report.status == 0, report.output
    assert process.lines[-1]["counters"]["write_failures"] == 0, process.errors


@pytest.fixture(params=["set-set", "set-cluster"])
def odd_ends(request: pytest.FixtureRequest, tmp_path: Any) -> Any:  # noqa: ANN401 - fixtures
    with ends_of(request, request.param, tmp_path) as ends:
        yield ends


def test_values_that_python_does_not_have(odd_ends: Ends) -> None:
    """Such values in fields and as ``_id``, in the copy and in every kind of change."""
    ends = odd_ends
    keys = [*VALUES.values(), *(number(each) for each in range(40))]
    values = [*VALUES.values(), *OF_VALUES_ONLY.values()]

    def insert(shift: int) -> None:
        for position, key in enumerate(keys):
            value = values[(position + shift) % len(values)]
            replaced = {"q": select(key), "u": document(key, (b"v", value), (b"o", value))}
            if not shift:
                write(ends.source, InsertOne(replaced["u"]))
            elif shift == 1:
                write(ends.source, DeleteOne(select(key)), InsertOne(replaced["u"]))
            else:
                ends.source[DATABASE].command("update", "odd", updates=[replaced])

    insert(0)
    with ends.syncing(*SLOW_COPY) as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)
        for shift in range(1, 4):
            insert(shift)
        for position, key in enumerate(keys):
            new = rawbson.raw_document(rawbson.wrap_value(*values[position % len(values)], name=b"v"))
            inner = rawbson.raw_document(rawbson.wrap_value(*values[position % len(values)], name=b"o.x"))
            write(ends.source, UpdateOne(select(key), {"$set": {"o": {}}}))
            write(ends.source, UpdateOne(select(key), {"$set": new}))
            write(ends.source, UpdateOne(select(key), {"$set": inner}))
        wait_equal(ends, process)
        write(ends.source, *(DeleteOne(select(key)) for key in keys[::2]))
        wait_equal(ends, process)


def test_names_that_are_not_text_are_removed_and_changed(odd_ends: Ends) -> None:
    ends = odd_ends
    broken = rawbson.raw_document(rawbson.wrap_value(*number(1), name=b"n\xff"))
    write(ends.source, InsertOne(document(number(1), (b"n\xff", number(1)), (b"m\xff", number(1)))))
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        write(ends.source, UpdateOne({"_id": 1}, {"$set": {"a": 1}}))
        write(ends.source, UpdateOne({"_id": 1}, {"$unset": broken}))
        write(ends.source, UpdateOne({"_id": 1}, {"$set": rawbson.raw_document(bytes(broken.raw).replace(b"n", b"k"))}))
        wait_equal(ends, process)


EQUAL: Final[dict[str, list[Any]]] = {
    "numbers": [1, 1.0, bson.Int64(1), bson.Decimal128("1"), bson.Decimal128("1.0")],
    "inner numbers": [{"a": 1, "b": [0]}, {"a": 1.0, "b": [-0.0]}, {"a": bson.Int64(1), "b": [bson.Decimal128("0")]}],
    "letters": ["a", "A", "a", "A"],
}


@pytest.mark.parametrize("kind", EQUAL)
def test_a_document_that_returns_with_an_equal_id_of_another_form(odd_ends: Ends, kind: str) -> None:
    """A number of another type, or text that a collation does not distinguish."""
    ends = odd_ends
    database = ends.source[DATABASE]
    database.create_collection("odd", collation={"locale": "en", "strength": 2})
    database.odd.insert_many([{"_id": EQUAL[kind][0], "n": -1}, {"_id": "other"}])
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        for count, key in enumerate(EQUAL[kind] * 20):
            database.odd.delete_one({"_id": key})
            database.odd.insert_one({"_id": key, "n": count})
            database.odd.update_one({"_id": key}, {"$set": {"m": count}})
        wait_equal(ends, process)
        database.odd.delete_one({"_id": EQUAL[kind][0]})
        wait_equal(ends, process)


def test_equal_ids_of_another_form_while_copying(odd_ends: Ends) -> None:
    ends = odd_ends
    odd = ends.source[DATABASE].odd
    odd.insert_many([{"_id": each, "n": 0} for each in range(600)])
    with ends.syncing("--workers", "1", "--batch-documents", "20") as process:
        for each in range(600):
            odd.delete_one({"_id": each})
            odd.insert_one({"_id": float(each) if each % 2 else bson.Int64(each), "n": 1})
        wait_equal(ends, process)


def test_a_document_at_the_target_with_an_equal_id_is_made_equal(odd_ends: Ends) -> None:
    ends = odd_ends
    ends.source[DATABASE].odd.insert_many([{"_id": float(each)} for each in range(20)])
    ends.target[DATABASE].odd.insert_many([{"_id": each} for each in range(20)])
    with ends.syncing("--existing", "merge") as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)


NAMES: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "dollar": lambda value: {"$a": value, "in": {"$b": value, "c.d": value}},
    "dots": lambda value: {"a.b": value, "a": {"b": value}},
    "empty": lambda value: {"": value, "in": {"": {"": value}}},
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_that_updates_cannot_express(odd_ends: Ends, kind: str) -> None:
    ends = odd_ends
    odd = ends.source[DATABASE].odd
    odd.insert_many([{"_id": each, **NAMES[kind](each)} for each in range(5)])
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)
        odd.insert_many([{"_id": each, **NAMES[kind](each)} for each in range(5, 10)])
        odd.delete_one({"_id": 1})
        odd.insert_one({"_id": 1, **NAMES[kind](77)})
        odd.update_many({}, {"$set": {"in.x": 1}})
        odd.update_many({"_id": {"$lt": 3}}, [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"y": 1}]}}])
        wait_equal(ends, process)


def test_empty_timestamps_stay_empty(odd_ends: Ends) -> None:
    """Empty timestamps arrive unchanged, although a server replaces them in inserts and replacements."""
    ends = odd_ends
    odd = ends.source[DATABASE].odd

    def insert(key: int) -> None:
        odd.insert_one({"_id": key, "before": 0.0, "at": Timestamp(1, 1), "after": 0.0, "in": {"at": Timestamp(0, 0)}})
        odd.update_one({"_id": key}, {"$set": {"at": Timestamp(0, 0)}})
        assert odd.find_one({"_id": key, "at": Timestamp(0, 0)})

    for each in range(3):
        insert(each)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)
        insert(3)
        odd.update_one({"_id": 1}, [{"$replaceWith": {"_id": 1, "x": Timestamp(0, 0), "y": 1}}])
        wait_equal(ends, process)


def test_empty_timestamps_with_names_that_updates_cannot_express(odd_ends: Ends) -> None:
    ends = odd_ends
    odd = ends.source[DATABASE].odd
    names = ["a.b", "$a", "$in.a", "", ".", "a.", "plain", "n.0"]

    def insert(key: int) -> None:
        odd.insert_one({"_id": key, "at": key})
        for name in names:
            fields = {"field": {"$literal": name}, "input": "$$ROOT", "value": Timestamp(0, 0)}
            odd.update_one({"_id": key}, [{"$replaceWith": {"$setField": fields}}])
        found = odd.find_one({"_id": key})
        assert found is not None
        assert [found[name] for name in names] == [Timestamp(0, 0)] * len(names)

    insert(0)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)
        insert(1)
        odd.update_many({}, {"$inc": {"at": 1}})
        wait_equal(ends, process)


def test_an_update_that_a_change_stream_does_not_describe_is_found(ends: Ends) -> None:
    """A stream of MongoDB 6.0 shows the field ``a.b`` and the field ``b`` of ``a`` in the same way."""
    odd = ends.source[DATABASE].odd
    odd.insert_one({"_id": 1, "a": {"b": 1}})
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        fields = {"field": {"$literal": "a.b"}, "input": "$$ROOT", "value": 7}
        odd.update_one({"_id": 1}, [{"$replaceWith": {"$setField": fields}}])
        process.wait_followed(ends.source)
        assert run_sync(ends.directory, "verify", process.id).status == 2
        assert run_sync(ends.directory, "pause", process.id).status == 0
        assert run_sync(ends.directory, "resume", process.id, "--retry-failures").status == 0
        wait_equal(ends, process)


def test_documents_of_the_greatest_size(odd_ends: Ends) -> None:
    ends = odd_ends
    odd = ends.source[DATABASE].odd
    size = 16 * 1024 * 1024 - len(bson.encode({"_id": 1, "data": b""}))
    odd.insert_one({"_id": 1, "data": bytes(size)})
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        wait_equal(ends, process)
        odd.insert_one({"_id": 2, "data": bytes(size)})
        odd.replace_one({"_id": 1}, {"data": b"\1" * size})
        odd.update_one({"_id": 2}, {"$set": {"data": b"\2" * size}})
        wait_equal(ends, process)
