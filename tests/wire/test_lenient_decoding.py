"""Values that a mongod accepts and pymongo's codec does not."""

from struct import pack
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.code import Code
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    BOOL,
    CODE,
    CODE_WITH_SCOPE,
    EMPTY_DOCUMENT,
    INT32,
    OBJECT,
    STRING,
    SYMBOL,
    UNDEFINED,
    InvalidBSONError,
    VerbatimDocument,
    decode_document,
    decode_exactly,
    decode_value,
    decode_whole,
    element,
    encode_document,
    from_elements,
    index,
    values,
)
from shardwright.wire.request import Request
from shardwright.wire.request_validation import error_of_request

BAD_TEXT = pack("<i", 4) + b"a\xffb\0"
BAD_BINARY = pack("<i", 6) + b"\x02" + pack("<i", 99) + b"ab"
ODD = [(STRING, BAD_TEXT), (SYMBOL, BAD_TEXT), (CODE, BAD_TEXT), (BINARY, BAD_BINARY)]
DB = element(b"$db", STRING, b"\x06\0\0\0admin\0")


@pytest.mark.parametrize(("kind", "value"), ODD)
def test_document_is_decoded_as_far_as_possible(kind: int, value: bytes) -> None:
    document = from_elements(element(b"good", STRING, b"\x02\0\0\0x\0") + element(b"odd", kind, value))
    decoded = decode_document(document)
    assert decoded["good"] == "x"
    text = "a\N{REPLACEMENT CHARACTER}b"
    expected = {BINARY: Binary(value[5:], 2), CODE: Code(text)}
    assert decoded["odd"] == expected.get(kind, text)


def test_what_is_kept_exactly_is_as_small_as_possible() -> None:
    number = pack("<i", 1)
    twice = from_elements(element(b"a", INT32, number) + element(b"a", INT32, pack("<i", 2)))
    once = from_elements(element(b"b", OBJECT, twice) + element(b"c", INT32, number))
    array = from_elements(element(b"0", OBJECT, once) + element(b"1", OBJECT, twice))
    outer = from_elements(element(b"l", ARRAY, array) + element(b"u", UNDEFINED, b""))
    decoded = decode_exactly(outer)
    inner, last = decoded["l"]
    assert not isinstance(inner, VerbatimDocument)
    assert isinstance(last, VerbatimDocument)
    assert (inner["b"], last.raw) == (last, twice)
    assert inner["b"] != {"a": 2}
    other = from_elements(element(b"a", INT32, pack("<i", 2)))
    assert inner["b"] != VerbatimDocument({"a": 2}, other, 0, len(other))
    kept = {"l": decoded["l"]}
    assert encode_document(kept) == from_elements(element(b"l", ARRAY, array))
    whole = decode_exactly(from_elements(element(b"o", OBJECT, outer)))
    assert encode_document(whole) == from_elements(element(b"o", OBJECT, outer))


@pytest.mark.parametrize("is_odd_everywhere", [False, True])
def test_no_value_is_encoded_for_each_document_around_it(
    monkeypatch: pytest.MonkeyPatch, is_odd_everywhere: bool
) -> None:
    """Otherwise a small document that is nested deep would keep a process busy for minutes."""
    sizes: list[int] = []

    def encode_counted(document: dict[str, object]) -> bytes:
        encoded = encode_document(document)
        sizes.append(len(encoded))
        return encoded

    monkeypatch.setattr(values, "encode_document", encode_counted)
    twice = element(b"a", INT32, pack("<i", 1)) * 2
    text = element(b"t", STRING, pack("<i", 9_001) + b"x" * 9_000 + b"\0")
    document = from_elements(text + twice)
    for _ in range(150):
        document = from_elements(element(b"d", OBJECT, document) + (twice if is_odd_everywhere else b""))
    outer = from_elements(element(b"d", OBJECT, document))
    assert encode_document(decode_exactly(outer)) == outer
    assert sum(sizes) < 10 * len(outer)


@pytest.mark.parametrize("around", [OBJECT, ARRAY])
def test_odd_values_nested_deep_are_read_a_few_times(monkeypatch: pytest.MonkeyPatch, around: int) -> None:
    """Otherwise, too, a document would be read once for each document around it."""
    sizes: list[int] = []

    def decode_counted(document: bytes, **options: Any) -> Any:  # noqa: ANN401
        sizes.append(len(document))
        return bson.decode(document, **options)

    monkeypatch.setattr(values, "bson", SimpleNamespace(decode=decode_counted))
    text = element(b"t", STRING, pack("<i", 9_001) + b"x" * 9_000 + b"\0")
    document = from_elements(text + element(b"odd", STRING, BAD_TEXT))
    for _ in range(NESTING_LEVELS_MAX - 2):
        document = from_elements(element(b"0", around, document))
    outer = from_elements(element(b"d", around, document))
    decode_document(outer)
    found = decode_whole(outer, index(outer)[b"d"])
    for _ in range(NESTING_LEVELS_MAX - 2):
        found = found["0"] if around == OBJECT else found[0]
    assert sum(sizes) < 20 * len(outer)


@pytest.mark.parametrize(("kind", "value"), ODD)
def test_nested_documents_are_encoded_as_they_were(kind: int, value: bytes) -> None:
    inner = from_elements(element(b"odd", kind, value) + element(b"n\xffme", BOOL, b"\1"))
    array = from_elements(element(b"0", OBJECT, inner) + element(b"1", BOOL, b"\0"))
    nested = from_elements(element(b"b", OBJECT, inner))
    outer = from_elements(element(b"a", OBJECT, nested) + element(b"l", ARRAY, array))
    decoded = decode_document(outer)
    assert decoded["a"]["b"]["n\N{REPLACEMENT CHARACTER}me"] is True
    assert isinstance(decoded["a"], VerbatimDocument)
    assert bson.encode(decoded) == outer
    assert bson.encode({"": decode_value(outer, index(outer)[b"a"])}) == bson.encode({"": decoded["a"]})


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.integers(-9, 9) | st.text()))
def test_valid_documents_are_decoded_as_by_the_codec(document: dict[str, object]) -> None:
    assert decode_document(bson.encode(document)) == document


@pytest.mark.parametrize(
    "value",
    [
        element(b"x", BOOL, b"\2"),
        element(b"x", STRING, pack("<i", 3) + b"abc"),
        element(b"x", 0x33, b""),
        element(b"x", CODE_WITH_SCOPE, pack("<i", 15) + pack("<i", 9) + b"a\0" + EMPTY_DOCUMENT),
        element(b"x", OBJECT, pack("<i", 6) + b"\0\0"),
    ],
)
def test_malformed_bytes_in_the_request_are_the_clients_error(value: bytes) -> None:
    nested = from_elements(element(b"ping", STRING, b"\1\0\0\0\0") + element(b"a", OBJECT, from_elements(value)) + DB)
    request = Request(OpMsg(op_msg(nested, request_id=1)))
    error = error_of_request(InvalidBSONError("met on the way"), request)
    assert error is not None
    assert error.code == ErrorCode.InvalidBSON


def test_other_failures_are_internal_errors() -> None:
    request = Request(OpMsg(op_msg(from_elements(element(b"odd", *ODD[0]) + DB), request_id=1)))
    assert error_of_request(InvalidBSONError("of a reply"), request) is None
    assert error_of_request(ZeroDivisionError(), request) is None
    refused = CommandError(ErrorCode.BadValue, "no")
    assert error_of_request(refused, request) is refused


def test_malformed_top_level() -> None:
    with pytest.raises(CommandError) as caught:
        Request(OpMsg(op_msg(from_elements(element(b"ping", 0x33, b"") + DB), request_id=1)))
    assert caught.value.code == ErrorCode.InvalidBSON
