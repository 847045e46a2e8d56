"""Resume tokens, seen on a mongod."""

from uuid import UUID

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.change_streams.tokens import ResumeToken, after, token_in_sort_key
from shardwright.router.reads.sort_order import sort_key_span
from shardwright.wire.errors import RemoteProtocolError

INSERT = "826B02D43C000000012B022C0100296E5A1004EC86AF65B89A489DB40094343625336B461E5F6964002B140004"
SECOND_IN_TRANSACTION = "826B02D43C000000012B022C01002B026E5A1004EC86AF65B89A489DB40094343625336B461E5F6964002B140004"
DROP = "826B02D43C0000000B2B022C0100296E5A1004EC86AF65B89A489DB40094343625336B04"
INVALIDATE = "826B02D43C0000000B2B022C0100296F5A1004EC86AF65B89A489DB40094343625336B04"
DATABASE_INVALIDATE = "826B02D43C000000102B022C0100296F04"
QUIET = "826B02D43B000000172B0229296E04"


def token(data: str) -> ResumeToken:
    parsed = ResumeToken.parse(bson.encode({"_data": data}))
    assert parsed is not None
    return parsed


def test_a_high_water_mark() -> None:
    mark = ResumeToken.high_water_mark(Timestamp(0x6B02D43B, 0x17))
    assert mark == token(QUIET)
    assert bson.decode(mark.raw) == {"_data": QUIET}
    assert mark.is_high_water_mark
    assert not mark.is_of_invalidation
    assert mark.time == Timestamp(0x6B02D43B, 0x17)


@pytest.mark.parametrize("data", [INSERT, SECOND_IN_TRANSACTION, DROP, INVALIDATE, DATABASE_INVALIDATE])
def test_the_token_of_an_event(data: str) -> None:
    parsed = token(data)
    assert not parsed.is_high_water_mark
    assert parsed.is_of_invalidation == (data in (INVALIDATE, DATABASE_INVALIDATE))
    assert parsed.ends_collection == (data == INVALIDATE)
    assert ResumeToken.high_water_mark(parsed.time) < parsed < ResumeToken.high_water_mark(after(parsed.time))


@pytest.mark.parametrize(
    ("data", "uuid"),
    [
        *((data, "ec86af65-b89a-489d-b400-94343625336b") for data in (INSERT, SECOND_IN_TRANSACTION, DROP, INVALIDATE)),
        *((data, None) for data in (DATABASE_INVALIDATE, QUIET)),
    ],
)
def test_the_collection_of_a_token(data: str, uuid: str | None) -> None:
    assert token(data).collection_uuid == (None if uuid is None else UUID(uuid))


@pytest.mark.parametrize("data", [INSERT, SECOND_IN_TRANSACTION])
def test_the_same_token_of_another_shard_comes_directly_after_it(data: str) -> None:
    one = token(data)
    second, third = one.repeated(), one.repeated().repeated()
    another_document = token(data.replace("2B140004", "2B160004"))
    assert one < second < third < another_document
    assert bson.decode(second.raw) == {"_data": second.data}
    assert (second.time, second.collection_uuid) == (one.time, one.collection_uuid)


@pytest.mark.parametrize("data", [DROP, INVALIDATE, DATABASE_INVALIDATE, QUIET])
def test_a_token_that_names_no_document_stays_as_it_is(data: str) -> None:
    assert token(data).repeated() == token(data)


def test_a_token_in_small_letters() -> None:
    assert token(INVALIDATE.lower()) == token(INVALIDATE)
    assert token(INVALIDATE.lower()).is_of_invalidation


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 2))
def test_the_time_of_a_mark(seconds: int, increment: int) -> None:
    time = Timestamp(seconds, increment)
    assert ResumeToken.high_water_mark(time).time == time
    assert ResumeToken.high_water_mark(time) < ResumeToken.high_water_mark(after(time))


@pytest.mark.parametrize(
    "document",
    [{}, {"_data": 5}, {"_data": ""}, {"_data": "82"}, {"_data": "82xx" + "0" * 14}, {"_data": f"{INSERT}x"}],
)
def test_what_is_no_token(document: dict[str, object]) -> None:
    assert ResumeToken.parse(bson.encode(document)) is None
    with pytest.raises(RemoteProtocolError):
        ResumeToken.received(bson.encode(document))


def test_the_token_in_a_sort_key() -> None:
    event = bson.encode({"x": 1, "$sortKey": [{"_data": INSERT, "_typeBits": b"\x82"}]})
    found = token_in_sort_key(event, sort_key_span(event))
    assert found == token(INSERT)
    assert bson.decode(found.raw) == {"_data": INSERT, "_typeBits": b"\x82"}
