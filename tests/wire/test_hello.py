"""The streaming protocol's decisions, and where mongos differs from mongod (compared in test_against_mongod)."""

from typing import Any

import bson
import pytest
from bson import Int64, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import (
    MONGOS,
    MONGOS_BYTES_MAX,
    HelloRequest,
    TopologyVersion,
    await_budget_ms,
    parse_client_metadata,
    parse_hello,
)
from shardwright.wire.rawbson import InvalidBSONError

CURRENT = TopologyVersion(ObjectId("0123456789ab0123456789ab"), 5)
OTHER_PROCESS = ObjectId("ba9876543210ba9876543210")


def parse(fields: dict[str, Any], *, exhaust_allowed: bool = False) -> HelloRequest:
    body = bson.encode({"hello": 1, **fields})
    return parse_hello(body, rawbson.index(body), exhaust_allowed=exhaust_allowed, assertions=MONGOS)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (CURRENT, 250),
        (TopologyVersion(CURRENT.process_id, 4), None),
        (TopologyVersion(OTHER_PROCESS, 5), None),
        (TopologyVersion(OTHER_PROCESS, 6), None),
    ],
)
def test_await_budget_waits_only_for_a_client_that_is_up_to_date(known: TopologyVersion, expected: int | None) -> None:
    request = parse({"topologyVersion": known.document(), "maxAwaitTimeMS": 250})
    assert await_budget_ms(request, CURRENT) == expected


def test_await_budget_of_a_plain_hello_is_none() -> None:
    assert await_budget_ms(parse({}), CURRENT) is None


def test_an_exhaust_stream_continues_from_the_last_reply() -> None:
    request = parse(
        {"topologyVersion": TopologyVersion(OTHER_PROCESS, 9).document(), "maxAwaitTimeMS": 10}, exhaust_allowed=True
    )
    assert await_budget_ms(request, CURRENT) is None
    following = request.following(CURRENT)
    assert following.exhaust_allowed
    assert await_budget_ms(following, CURRENT) == 10
    assert await_budget_ms(following, CURRENT.bumped()) is None


@pytest.mark.parametrize(
    ("fields", "exhaust_allowed", "code", "message"),
    [
        (
            {"topologyVersion": CURRENT.document()},
            False,
            51760,
            "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
        ),
        ({"maxAwaitTimeMS": 1}, False, 51760, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"),
        (
            {"topologyVersion": {"processId": OTHER_PROCESS, "counter": Int64(-1)}, "maxAwaitTimeMS": 1},
            False,
            51758,
            "topologyVersion must have a non-negative counter",
        ),
        ({}, True, 51763, "A hello/isMaster request with exhaust must specify 'maxAwaitTimeMS'"),
    ],
)
def test_mongos_has_its_own_assertions(fields: dict[str, Any], exhaust_allowed: bool, code: int, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(fields, exhaust_allowed=exhaust_allowed)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_mongos_refuses_a_counter_in_the_future() -> None:
    request = parse({"topologyVersion": CURRENT.bumped().document(), "maxAwaitTimeMS": 1})
    with pytest.raises(CommandError, match="greater than the mongos topology version counter: 5") as caught:
        await_budget_ms(request, CURRENT, assertions=MONGOS)
    assert caught.value.code == 51761


def test_parse_hello_reads_what_the_client_offers() -> None:
    request = parse({"helloOk": True, "compression": ["zstd", "snappy"]})
    assert request.hello_ok
    assert request.compression == ("zstd", "snappy")
    assert parse({}) == HelloRequest(None, None, False, False, None)


@given(st.binary(max_size=40), st.sampled_from(["topologyVersion", "maxAwaitTimeMS", "helloOk", "compression"]))
def test_parse_hello_reads_any_field_or_raises(value: bytes, name: str) -> None:
    for kind in (rawbson.OBJECT, rawbson.ARRAY, rawbson.DOUBLE, rawbson.DECIMAL128, rawbson.INT64, rawbson.STRING):
        body = rawbson.from_elements(rawbson.element(name.encode(), kind, value))
        try:
            request = parse_hello(body, rawbson.index(body))
        except (InvalidBSONError, CommandError):
            continue
        assert request.topology_version is None or request.max_await_ms is not None


def test_client_metadata_identifies_the_client() -> None:
    client = {
        "application": {"name": "orders"},
        "driver": {"name": "PyMongo", "version": "4.20"},
        "os": {"type": "Linux"},
    }
    body = bson.encode({"client": client})
    metadata = parse_client_metadata(body, rawbson.index(body)[b"client"])
    assert (metadata.app_name, metadata.driver) == ("orders", "PyMongo 4.20")
    assert metadata.document == bson.encode(client)


@pytest.mark.parametrize(("padding", "is_accepted"), [(0, True), (1, False)])
def test_mongos_accepts_512_bytes_of_client_metadata(padding: int, is_accepted: bool) -> None:
    client = {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}, "platform": ""}
    client["platform"] = "x" * (MONGOS_BYTES_MAX - len(bson.encode(client)) + padding)
    body = bson.encode({"client": client})
    span = rawbson.index(body)[b"client"]
    if is_accepted:
        assert len(parse_client_metadata(body, span, bytes_max=MONGOS_BYTES_MAX).document) == MONGOS_BYTES_MAX
    else:
        with pytest.raises(CommandError) as caught:
            parse_client_metadata(body, span, bytes_max=MONGOS_BYTES_MAX)
        assert caught.value.code == ErrorCode.ClientMetadataDocumentTooLarge
