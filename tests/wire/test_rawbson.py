"""Raw BSON access compared with pymongo's codec, and on damaged documents."""

import datetime
import re
from contextlib import suppress
from struct import pack
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire import rawbson
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import InvalidBSONError

EVERY_TYPE: dict[str, Any] = {
    "double": 1.5,
    "string": "größe\0with nul",
    "object": {"a": {"b": 1}},
    "array": [1, "two", {"three": 3}],
    "binary": Binary(b"\0\1\2", 4),
    "objectId": ObjectId("0123456789ab0123456789ab"),
    "bool": True,
    "date": datetime.datetime(2026, 1, 31, 12, 30),
    "null": None,
    "regex": Regex("^a.*", re.IGNORECASE),
    "code": Code("function() {}"),
    "codeWithScope": Code("x", {"x": 1}),
    "int": 7,
    "timestamp": Timestamp(5, 6),
    "long": Int64(2**40),
    "decimal": Decimal128("1.50"),
    "minKey": MinKey(),
    "maxKey": MaxKey(),
    "ref": DBRef("c", 1),
    "": "a field without a name",
}
DOCUMENT = bson.encode(EVERY_TYPE)

names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
    | st.binary(max_size=8)
    | st.builds(Int64, st.integers(min_value=-(2**63), max_value=2**63 - 1))
    | st.builds(ObjectId, st.binary(min_size=12, max_size=12))
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
documents = st.dictionaries(names, values, max_size=6)


def test_spans_distinguish_every_type() -> None:
    found = {name.decode(): rawbson.decode_value(DOCUMENT, span) for name, span in rawbson.spans(DOCUMENT)}
    # A value decoded on its own is not combined into a DBRef.
    assert found == bson.decode(DOCUMENT, codec_options=rawbson.VALUE_CODEC) | {"ref": {"$ref": "c", "$id": 1}}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (rawbson.UNDEFINED, b""),
        (rawbson.DB_POINTER, pack("<i", 4) + b"a.b\0" + bytes(12)),
        (rawbson.SYMBOL, pack("<i", 2) + b"s\0"),
    ],
)
def test_spans_know_the_deprecated_types(kind: int, value: bytes) -> None:
    document = rawbson.from_elements(rawbson.element(b"old", kind, value) + rawbson.encode_elements({"next": 1}))
    fields = rawbson.index(document)
    assert fields[b"old"][0] == kind
    assert document[fields[b"old"][2] : fields[b"old"][3]] == value
    assert rawbson.decode_value(document, fields[b"next"]) == 1


@given(documents)
def test_index_agrees_with_the_codec(fields: dict[str, Any]) -> None:
    document = bson.encode(fields)
    decoded = bson.decode(document, codec_options=rawbson.VALUE_CODEC)
    index = rawbson.index(document)
    assert [name.decode() for name in index] == list(decoded)
    assert {name.decode(): rawbson.decode_value(document, span) for name, span in index.items()} == decoded
    assert dict(rawbson.spans(document)) == index


@given(documents, documents)
def test_append_adds_and_without_restores_the_bytes(fields: dict[str, Any], added: dict[str, Any]) -> None:
    added = {f"${name}": value for name, value in added.items() if f"${name}" not in fields}
    document = bson.encode(fields)
    appended = rawbson.append(document, rawbson.encode_elements(added))
    assert bson.decode(appended) == bson.decode(document) | bson.decode(bson.encode(added))
    assert rawbson.without(appended, {name.encode() for name in added}) == document


@given(documents, st.sets(names))
def test_without_removes_the_named_elements_only(fields: dict[str, Any], removed: set[str]) -> None:
    document = bson.encode(fields)
    kept = {name: value for name, value in fields.items() if name not in removed}
    assert rawbson.without(document, {name.encode() for name in removed}) == bson.encode(kept)


@given(documents, st.sets(names))
def test_without_spans_removes_what_without_removes(fields: dict[str, Any], removed: set[str]) -> None:
    document = bson.encode(fields)
    spans = [span for name, span in rawbson.index(document).items() if name.decode() in removed]
    assert rawbson.without_spans(document, spans) == rawbson.without(document, {name.encode() for name in removed})


def test_without_returns_the_same_object_if_nothing_is_removed() -> None:
    assert rawbson.without(DOCUMENT, {b"absent"}) is DOCUMENT


def test_index_keeps_the_last_of_repeated_names() -> None:
    document = rawbson.from_elements(rawbson.encode_elements({"a": 1}) + rawbson.encode_elements({"a": 2}))
    assert rawbson.decode_value(document, rawbson.index(document)[b"a"]) == 2
    assert rawbson.without(document, {b"a"}) == rawbson.EMPTY_DOCUMENT


@given(st.lists(documents, max_size=12))
def test_array_documents_reverses_array_of_documents(parts: list[dict[str, Any]]) -> None:
    encoded = [bson.encode(part) for part in parts]
    # As raw documents: the codec moves _id to the front of a top-level document, but not of one inside an array.
    document = bson.encode({"documents": [rawbson.raw_document(part) for part in encoded]})
    span = rawbson.index(document)[b"documents"]
    assert rawbson.array_documents(document, span) == encoded
    assert rawbson.array_of_documents(encoded) == document[span[2] : span[3]]


@pytest.mark.parametrize("count", [1_023, 1_024, 1_025, 10_001])
def test_long_arrays_of_documents(count: int) -> None:
    encoded = [bson.encode({"n": number}) for number in range(count)]
    document = bson.encode({"documents": [{"n": number} for number in range(count)]})
    span = rawbson.index(document)[b"documents"]
    assert rawbson.array_documents(document, span) == encoded
    assert rawbson.array_of_documents(encoded) == document[span[2] : span[3]]


@pytest.mark.parametrize("names", [("1", "2"), ("0", "2"), ("", ""), ("00", "1")])
def test_documents_of_arrays_with_unusual_names(names: tuple[str, str]) -> None:
    inner = {names[0]: {"n": 0}, names[1] + "x" * (names[0] == names[1]): {"n": 1}}
    array = bson.encode(inner)
    found = rawbson.array_documents(array, (rawbson.ARRAY, 0, 0, len(array)))
    assert found == [bson.encode(each) for each in inner.values()]


@pytest.mark.parametrize("value", [1, {"0": {}}, [1], [{}, "x"], None])
def test_array_documents_refuses_anything_else(value: object) -> None:
    document = bson.encode({"documents": value})
    with pytest.raises(InvalidBSONError):
        rawbson.array_documents(document, rawbson.index(document)[b"documents"])


@given(st.lists(documents, max_size=3), st.data())
def test_array_documents_refuses_what_spans_refuses(parts: list[dict[str, Any]], data: st.DataObject) -> None:
    array = bytearray(rawbson.array_of_documents([bson.encode(part) for part in parts]))
    array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(array)
    expected: list[bytes] | None
    try:
        elements = [span for _, span in rawbson.spans(damaged)]
        expected = [damaged[start:end] for _, _, start, end in elements]
        if any(kind != rawbson.OBJECT for kind, _, _, _ in elements):
            expected = None
    except InvalidBSONError:
        expected = None
    found: list[bytes] | None
    try:
        found = rawbson.array_documents(damaged, (rawbson.ARRAY, 0, 0, len(damaged)))
    except InvalidBSONError:
        found = None
    assert found == expected


def test_raw_document_is_copied_verbatim_into_another() -> None:
    assert bson.encode({"inner": rawbson.raw_document(DOCUMENT)}) == bson.encode({"inner": EVERY_TYPE})


def test_index_reads_a_document_inside_other_bytes() -> None:
    data = b"before" + DOCUMENT + b"after"
    assert rawbson.document_length(data, 6) == len(DOCUMENT)
    assert len(rawbson.index(data, 6)) == len(EVERY_TYPE)


def test_every_truncation_is_refused() -> None:
    for length in range(len(DOCUMENT)):
        with pytest.raises(InvalidBSONError):
            rawbson.index(DOCUMENT[:length])
        with pytest.raises(InvalidBSONError):
            list(rawbson.spans(DOCUMENT[:length]))


def test_every_truncation_that_corrects_its_length_is_refused() -> None:
    boundaries = {span[1] for _, span in rawbson.spans(DOCUMENT)}
    for length in range(5, len(DOCUMENT)):
        damaged = pack("<i", length) + DOCUMENT[4 : length - 1] + b"\0"
        if length - 1 in boundaries:
            rawbson.index(damaged)
        else:
            with pytest.raises(InvalidBSONError):
                rawbson.index(damaged)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\x05\0\0\0",
        b"\x04\0\0\0\0",
        b"\xff\xff\xff\xff\0",
        pack("<i", 6) + b"\0\0",  # ends before its length says
        rawbson.from_elements(b"\x14a\0"),  # no such type
        rawbson.from_elements(b"\x02a\0" + pack("<i", 0)),  # a string without room for its terminator
        rawbson.from_elements(b"\x02a\0" + pack("<i", 2**31 - 1) + b"x\0"),
        rawbson.from_elements(b"\x05a\0" + pack("<i", -1) + b"\0"),
        rawbson.from_elements(b"\x03a\0" + pack("<i", 4)),
        rawbson.from_elements(b"\x0ba\0x\0x"),  # regular expression options without an end
        rawbson.from_elements(b"\x10a\0\0"),
        rawbson.from_elements(b"\x10" + b"a" * 10),
    ],
)
def test_malformed_documents_are_refused(document: bytes) -> None:
    with pytest.raises(InvalidBSONError):
        rawbson.index(document)
    with pytest.raises(InvalidBSONError):
        list(rawbson.spans(document))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for document in (data, rawbson.from_elements(data)):
        try:
            index = rawbson.index(document)
        except InvalidBSONError:
            continue
        for _, _, value_start, value_end in index.values():
            assert 4 < value_start <= value_end < len(document)


@given(st.integers(0, len(DOCUMENT) - 1), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(position: int, byte: int) -> None:
    damaged = DOCUMENT[:position] + bytes((byte,)) + DOCUMENT[position + 1 :]
    try:
        list(rawbson.spans(damaged))
    except InvalidBSONError:
        return
    assert rawbson.document_length(damaged) <= len(damaged)


@pytest.mark.parametrize("kind", [rawbson.OBJECT, rawbson.ARRAY])
def test_depth_exceeds_counts_the_outermost_document(kind: int) -> None:
    document = rawbson.EMPTY_DOCUMENT
    for levels in range(1, NESTING_LEVELS_MAX + 2):
        assert rawbson.depth_exceeds(document, levels - 1)
        assert not rawbson.depth_exceeds(document, levels)
        document = rawbson.from_elements(rawbson.element(b"0", kind, document))


def test_encode_document_keeps_the_order_of_fields() -> None:
    document = {"country": 1, "_id": {"b": 1, "_id": 2}}
    assert list(bson.decode(rawbson.encode_document(document))) == ["country", "_id"]
    assert list(bson.decode(rawbson.encode_document(document))["_id"]) == ["b", "_id"]


@given(documents)
def test_find_agrees_with_index(content: dict[str, Any]) -> None:
    document = bson.encode(content)
    index = rawbson.index(document)
    for name in [*index, b"not there"]:
        assert rawbson.find(document, name) == index.get(name)


@given(st.binary(max_size=40), st.binary(max_size=3))
def test_find_in_any_bytes_finds_or_raises(damaged: bytes, name: bytes) -> None:
    with suppress(InvalidBSONError):
        rawbson.find(damaged, name)


def test_find_returns_the_first_of_two_and_reads_no_further() -> None:
    document = rawbson.from_elements(rawbson.element(b"a", rawbson.NULL, b"") * 2 + b"\x06broken")
    assert rawbson.find(document, b"a") == (rawbson.NULL, 4, 7, 7)
    with pytest.raises(InvalidBSONError):
        rawbson.find(document, b"b")


def test_spans_at_any_depth() -> None:
    nested = rawbson.encode_elements({"a": {"b": [{"c": 1}]}}) + rawbson.encode_elements({"a": 2})
    found = list(rawbson.spans_at_any_depth(rawbson.from_elements(nested)))
    assert sorted(name for name, _ in found) == [b"0", b"a", b"a", b"b", b"c"]
    assert [span[0] for name, span in found if name == b"c"] == [rawbson.INT32]
