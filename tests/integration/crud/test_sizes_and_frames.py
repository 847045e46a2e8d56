"""The largest messages, malformed ones, compressed ones, and half-closed connections."""

import socket
import struct

import bson
import pytest
from pymongo.errors import DocumentTooLarge, OperationFailure

from shardwright.wire.message import checksum
from tests.integration.health import sample
from tests.integration.raw_client import raw_client
from tests.integration.sharded import Documents
from tests.local_cluster import RunningCluster
from tests.wire.raw_connection import op_msg_frame

DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
MESSAGE_BYTES_MAX = 48_000_000
DAEMONS = ["router.0", "shard0.0.shardd", "config.0.configd"]

_CHECKSUM_PRESENT = 1


def document_of(size: int, **fields: object) -> dict[str, object]:
    """A document of exactly ``size`` bytes."""
    document = {**fields, "text": ""}
    return {**document, "text": "x" * (size - len(bson.encode(document)))}


@pytest.mark.parametrize("key", [1, 501])
def test_document_of_16_mib(ranged: Documents, key: int) -> None:
    document = document_of(DOCUMENT_BYTES_MAX, _id=key, key=key)
    ranged.insert_one(document)
    assert ranged.find_one({"key": key}) == document
    updated = ranged.find_one_and_update({"key": key}, {"$set": {"text": ""}})
    assert updated == document


def test_document_beyond_16_mib(cluster: RunningCluster, ranged: Documents) -> None:
    too_large = document_of(DOCUMENT_BYTES_MAX + 1, _id=1, key=1)
    with pytest.raises((DocumentTooLarge, OperationFailure)):
        ranged.insert_one(too_large)
    # Past the driver's own check:
    with raw_client(cluster.address("router.0")) as client:
        section = b"documents\0" + bson.encode(too_large)
        body = bson.encode({"insert": ranged.name, "$db": ranged.database.name})
        payload = struct.pack("<I", 0) + b"\0" + body + b"\x01" + struct.pack("<i", 4 + len(section)) + section
        client.send(struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload)
        reply = client.receive_reply()
    failure = reply.get("writeErrors", [reply])[0]
    assert failure["code"] in (2, 10334), reply
    assert ranged.count_documents({}) == 0


def test_message_of_48_megabytes(ranged: Documents) -> None:
    """Three documents of nearly 16 MB, for both shards, in one message."""
    size = (MESSAGE_BYTES_MAX - 2000) // 3
    documents = [document_of(size, _id=key, key=key) for key in (1, 501, 2)]
    assert ranged.insert_many(documents).inserted_ids == [1, 501, 2]
    assert [document["key"] for document in ranged.find({}, {"key": 1}).sort("key", 1)] == [1, 2, 501]
    assert list(ranged.find().sort("key", 1)) == [documents[0], documents[2], documents[1]]


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<iiii", 15, 1, 0, 2013),
        struct.pack("<iiii", -1, 1, 0, 2013),
        struct.pack("<iiii", MESSAGE_BYTES_MAX + 1, 1, 0, 2013),
        struct.pack("<iiii", 16, 1, 0, 2013),
        struct.pack("<iiii", 26, 1, 0, 2013) + struct.pack("<I", 1 << 5) + b"\0" + b"\5\0\0\0\0",
        struct.pack("<iiii", 26, 1, 0, 9999) + bytes(10),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["short", "negative", "too long", "empty", "unknown flag", "bad opcode", "http"],
)
def test_malformed_frame_closes_only_its_connection(cluster: RunningCluster, daemon: str, frame: bytes) -> None:
    address = cluster.address(daemon)
    errors_before = _protocol_errors(cluster, daemon)
    with raw_client(address) as good, raw_client(address) as bad:
        assert good.command({"ping": 1})["ok"] == 1
        bad.send(frame)
        reply = bad.receive()
        if reply:  # an error before the connection is closed
            assert bson.decode(reply[21:])["ok"] == 0
            assert bad.is_closed_by_server()
        assert _protocol_errors(cluster, daemon) == errors_before + 1
        assert good.command({"ping": 1})["ok"] == 1


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("section", [b"\0" + b"\xff\xff\xff\x7f\0", b"\7" + b"\5\0\0\0\0"], ids=["length", "kind"])
def test_a_malformed_section_is_answered(cluster: RunningCluster, daemon: str, section: bytes) -> None:
    with raw_client(cluster.address(daemon)) as client:
        client.send(struct.pack("<iiii", 26, 1, 0, 2013) + struct.pack("<I", 0) + section)
        assert client.receive_reply()["ok"] == 0
        assert client.command({"ping": 1})["ok"] == 1


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("opcode", range(2001, 2008))
def test_removed_messages_are_answered_as_by_mongod(cluster: RunningCluster, daemon: str, opcode: int) -> None:
    """OP_QUERY (2004) and OP_GET_MORE (2005) with an error, the others not at all."""
    namespace, document = b"db.collection\0", bson.encode({"_id": 1})
    content = {
        2004: bytes(4) + namespace + struct.pack("<ii", 0, 1) + document,
        2005: bytes(4) + namespace + struct.pack("<iq", 0, 12345),
        2007: struct.pack("<iiq", 0, 1, 12345),
    }.get(opcode, bytes(4) + namespace + bytes(4) + document)
    frame = struct.pack("<iiii", 16 + len(content), 7, 0, opcode) + content
    answers = []
    for server in ("shard0.0.mongod", daemon):
        with raw_client(cluster.address(server)) as client:
            client.send(frame)
            answers.append(answer := client.receive())
            assert not answer or client.command({"ping": 1})["ok"] == 1
    by_mongod, by_daemon = ((answer[8:], len(answer)) for answer in answers)
    assert by_daemon == by_mongod


def _protocol_errors(cluster: RunningCluster, daemon: str) -> float:
    role = next(process["role"] for process in cluster.document["processes"] if process["name"] == daemon)
    return sample(cluster.metrics[daemon], "protocol_errors_total", daemon=role)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_half_closed_connection(cluster: RunningCluster, daemon: str) -> None:
    """A half-closed client may still get a reply, but not after a truncated message; both connections are closed."""
    address = cluster.address(daemon)
    whole = op_msg_frame({"ping": 1, "$db": "admin"})
    with raw_client(address) as client:
        client.send(whole)
        client.socket.shutdown(socket.SHUT_WR)
        reply = client.receive()
        assert not reply or bson.decode(reply[21:])["ok"] == 1
        assert client.is_closed_by_server()
    for cut in (1, 16, len(whole) - 1):
        with raw_client(address) as client:
            client.send(whole[:cut])
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed_by_server()


@pytest.mark.parametrize("daemon", DAEMONS)
def test_checksums(cluster: RunningCluster, daemon: str) -> None:
    """A correct checksum is answered with one; a wrong one closes the connection."""
    frame = op_msg_frame({"ping": 1, "$db": "admin"}, _CHECKSUM_PRESENT)
    frame = struct.pack("<i", len(frame) + 4) + frame[4:]
    right = frame + struct.pack("<I", checksum(frame))
    with raw_client(cluster.address(daemon)) as client:
        client.send(right)
        reply = client.receive()
        assert bson.decode(reply[21 : 21 + int.from_bytes(reply[21:25], "little")])["ok"] == 1
        if int.from_bytes(reply[16:20], "little") & _CHECKSUM_PRESENT:
            assert struct.unpack("<I", reply[-4:])[0] == checksum(reply[:-4])
    with raw_client(cluster.address(daemon)) as client:
        client.send(right[:-1] + bytes([right[-1] ^ 1]))
        reply = client.receive()
        assert not reply or bson.decode(reply[21:])["ok"] == 0


@pytest.mark.parametrize("daemon", ["router.0", "shard0.0.shardd"])
def test_compression(cluster: RunningCluster, daemon: str) -> None:
    with cluster.direct(daemon, compressors="zlib") as client:
        collection = client.integration_compressed.things
        documents = [{"_id": n, "text": "abc" * 1000} for n in range(200)]
        collection.insert_many(documents)
        assert list(collection.find().sort("_id", 1)) == documents
        client.drop_database("integration_compressed")


@pytest.mark.parametrize("mode", ["primary", "primaryPreferred", "secondaryPreferred", "nearest"])
def test_read_preference(cluster: RunningCluster, ranged: Documents, mode: str) -> None:
    ranged.insert_many([{"key": 1}, {"key": 501}])
    with cluster.client(readPreference=mode) as client:
        assert client[ranged.database.name][ranged.name].count_documents({}) == 2


def test_unsatisfiable_read_preference(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_one({"key": 1})
    with cluster.client(readPreference="secondary") as client, pytest.raises(OperationFailure) as caught:
        client[ranged.database.name][ranged.name].find_one({"key": 1}, max_time_ms=500)
    assert caught.value.code in (50, 133)


@pytest.mark.parametrize("query", [{"key": 700}, {}])
def test_max_time(ranged: Documents, query: dict[str, object]) -> None:
    ranged.insert_many([{"key": 700}, {"key": 1}])
    slow = {**query, "$where": "sleep(300) || true"}
    with pytest.raises(OperationFailure) as caught:
        list(ranged.find(slow).max_time_ms(100))
    assert caught.value.code == 50
    assert len(list(ranged.find(slow).max_time_ms(20_000))) == (1 if query else 2)
