"""Requests to shards get the session fields of their transaction, and keep everything else byte by byte."""

import bson
from bson import Int64
from bson.timestamp import Timestamp

from shardwright.router.transactions.transaction_sender import in_transaction
from shardwright.sharding.clock import VectorClock, with_cluster_time
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import encode_elements

ELEMENTS = encode_elements({"lsid": {"id": 1}, "txnNumber": Int64(5), "autocommit": False})


def test_fields_of_the_client_are_replaced() -> None:
    command = {
        "find": "c",
        "lsid": {"id": 2},
        "filter": {"lsid": 3, "startTransaction": 1},
        "startTransaction": True,
        "readConcern": {"level": "local"},
        "txnNumber": Int64(4),
        "$db": "d",
    }
    message = OpMsg(in_transaction(op_msg(bson.encode(command), request_id=9), ELEMENTS))
    assert bson.decode(message.body) == {
        "find": "c",
        "filter": {"lsid": 3, "startTransaction": 1},
        "$db": "d",
        "lsid": {"id": 1},
        "txnNumber": 5,
        "autocommit": False,
    }
    assert message.request_id == 9


def test_the_router_gossips_its_own_time() -> None:
    """A shard refuses to read at a time that it has not heard of, and the router's may be later than the client's."""
    command = {"find": "c", "$clusterTime": {"clusterTime": Timestamp(5, 1)}, "$db": "d"}
    frame = in_transaction(op_msg(bson.encode(command), request_id=9), ELEMENTS)
    clock = VectorClock()
    clock.observe_cluster_time(pack_timestamp(Timestamp(6, 1)))
    gossiped = bson.decode(OpMsg(with_cluster_time(frame, clock)).body)
    assert gossiped["$clusterTime"]["clusterTime"] == Timestamp(6, 1)


def test_sections_stay() -> None:
    documents = [bson.encode({"_id": number, "lsid": 1}) for number in range(3)]
    frame = op_msg(
        bson.encode({"insert": "c", "autocommit": False, "$db": "d"}),
        request_id=9,
        sections=encode_sequence(b"documents", documents),
    )
    message = OpMsg(in_transaction(frame, ELEMENTS))
    assert list(bson.decode(message.body)) == ["insert", "$db", "lsid", "txnNumber", "autocommit"]
    assert message.sequences[0].documents == documents
