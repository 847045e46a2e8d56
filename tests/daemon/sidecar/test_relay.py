"""To real drivers a daemon looks like the mongod behind it, byte for byte where possible."""

import asyncio
import socket
from typing import Any
from urllib.request import urlopen

import bson
import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.cursor import CursorType
from pymongo.write_concern import WriteConcern

from shardwright.sharding.feature_version import EXTENSIONS
from shardwright.wire.frames import FrameReader
from shardwright.wire.message import CHECKSUM_PRESENT, MORE_TO_COME, OpMsg, encode_sequence, op_msg, with_checksum
from tests.shardd.mini_cluster import Member, Set


class Raw:
    """A connection for frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._reader = FrameReader()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> OpMsg:
        while (frame := self._reader.next_frame()) is None:
            data = self._socket.recv(65536)
            assert data, "the daemon closed the connection"
            self._reader.feed(data)
        return OpMsg(frame)

    def exchange(self, command: dict[str, Any], *, request_id: int = 7, sections: bytes = b"") -> OpMsg:
        self.send(op_msg(bson.encode(command), request_id=request_id, sections=sections))
        return self.receive()


def test_a_reply_answers_the_request_of_the_client(member: Member) -> None:
    with Raw(member.address) as raw:
        reply = raw.exchange({"ping": 1, "$db": "admin"}, request_id=4711)
    assert reply.response_to == 4711
    assert bson.decode(reply.body)["ok"] == 1.0


def test_document_sequences_pass(member: Member) -> None:
    documents = [bson.encode({"_id": number}) for number in range(3)]
    with Raw(member.address) as raw:
        reply = raw.exchange({"insert": "sequences", "$db": "relay"}, sections=encode_sequence(b"documents", documents))
    assert bson.decode(reply.body)["n"] == 3


def test_a_checksum_is_answered_with_a_checksum(member: Member) -> None:
    with Raw(member.address) as raw:
        for db in ("admin", "relay"):
            raw.send(with_checksum(op_msg(bson.encode({"ping": 1, "$db": db}), request_id=1)))
            reply = raw.receive()
            assert reply.flags & CHECKSUM_PRESENT


@pytest.mark.parametrize("checksum", [False, True], ids=["plain", "checksum"])
def test_a_long_reply_arrives_whole_and_the_next_one_after_it(member: Member, checksum: bool) -> None:
    with Raw(member.address) as raw:
        documents = [{"_id": number, "text": "x" * 200_000} for number in range(20)]
        raw.exchange({"delete": "long", "deletes": [{"q": {}, "limit": 0}], "$db": "relay"})
        raw.exchange({"insert": "long", "documents": documents, "$db": "relay"})
        frame = op_msg(bson.encode({"find": "long", "$db": "relay"}), request_id=9)
        raw.send(with_checksum(frame) if checksum else frame)
        reply = raw.receive()
        assert reply.response_to == 9
        assert bson.decode(reply.body)["cursor"]["firstBatch"] == documents
        assert bson.decode(raw.exchange({"ping": 1, "$db": "admin"}).body)["ok"] == 1.0


def test_an_unacknowledged_write_is_not_answered(member: Member) -> None:
    with Raw(member.address) as raw:
        write = {"insert": "w0", "documents": [{"_id": 1}], "writeConcern": {"w": 0}, "$db": "relay"}
        raw.send(op_msg(bson.encode(write), request_id=1, flags=MORE_TO_COME))
        found = bson.decode(raw.exchange({"find": "w0", "$db": "relay"}, request_id=2).body)
    assert found["cursor"]["firstBatch"] == [{"_id": 1}]


def test_a_driver_finds_a_replica_set_of_daemons(alone: Set) -> None:
    with alone.client() as client:
        client.relay.items.insert_many([{"_id": number} for number in range(1000)])
        assert client.primary == ("127.0.0.1", int(alone.members[0].address.partition(":")[2]))
        assert client.nodes == {client.primary}
        exhausted = client.relay.items.find(cursor_type=CursorType.EXHAUST, batch_size=100)
        assert len(list(exhausted)) == 1000
        unacknowledged = client.relay.get_collection("items", write_concern=WriteConcern(w=0))
        unacknowledged.delete_one({"_id": 0})
        with client.start_session() as session, session.start_transaction():
            client.relay.items.insert_one({"_id": "in a transaction"}, session=session)
        assert client.relay.items.count_documents({"_id": "in a transaction"}) == 1


def test_an_asynchronous_driver_finds_it_too(alone: Set) -> None:
    async def main() -> int:
        hosts = ",".join(member.address for member in alone.members)
        async with AsyncMongoClient[dict[str, Any]](f"mongodb://{hosts}/", replicaSet=alone.name) as client:
            await client.relay.asynchronous.insert_many([{"n": number} for number in range(300)])
            return len(await client.relay.asynchronous.find(batch_size=50).to_list())

    assert asyncio.run(main()) == 300


def test_change_streams_pass(alone: Set) -> None:
    with alone.client() as client, client.relay.watched.watch() as stream:
        client.relay.watched.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}


def test_mongod_knows_the_client(member: Member) -> None:
    address = f"mongodb://{member.address}/"
    with MongoClient[dict[str, Any]](address, directConnection=True, appname="known by name") as client:
        operations = client.admin.aggregate([{"$currentOp": {"idleConnections": True}}])
        assert any(operation.get("appName") == "known by name" for operation in operations)


@pytest.mark.parametrize("name", ["hello", "isMaster", "ismaster"])
def test_hello_is_mongods_with_the_address_of_the_daemon(member: Member, name: str) -> None:
    with member.client() as client, member.mongod_client() as mongod:
        seen, wanted = client.admin.command(name), mongod.admin.command(name)
    assert (seen["me"], seen["primary"], seen["hosts"]) == (member.address, member.address, [member.address])
    own = ["involvedNamespaces", "mayChangeOwner", "acknowledgedTime", "clientSession"]
    assert seen.pop("extensions") == [*own, *EXTENSIONS]
    assert seen.pop("isImplicitDefaultMajorityWC") is True  # the mongod is not a shard server
    assert list(seen) == list(wanted)
    varying = {"me", "primary", "hosts", "topologyVersion", "localTime", "lastWrite", "connectionId"}
    varying |= {"$clusterTime", "operationTime"}
    assert {field: seen[field] for field in seen if field not in varying} == {
        field: wanted[field] for field in wanted if field not in varying
    }


def test_hello_waits_for_changes_and_streams(member: Member) -> None:
    with Raw(member.address) as raw:
        version = bson.decode(raw.exchange({"hello": 1, "$db": "admin"}).body)["topologyVersion"]
        waiting = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 50, "$db": "admin"}
        raw.send(op_msg(bson.encode(waiting), request_id=9, flags=1 << 16))
        first, second = raw.receive(), raw.receive()
    assert (first.response_to, second.response_to) == (9, first.request_id)
    assert first.flags & second.flags & MORE_TO_COME
    assert bson.decode(second.body)["topologyVersion"] == version


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"maxAwaitTimeMS": 5}, 31368), ({"topologyVersion": {"processId": bson.ObjectId()}, "maxAwaitTimeMS": 5}, 40414)],
)
def test_malformed_awaitable_hellos_get_mongods_errors(member: Member, fields: dict[str, Any], code: int) -> None:
    with member.client() as client:
        assert client.admin.command({"hello": 1, **fields}, check=False)["code"] == code


def test_the_daemon_registers_in_its_set(member: Member) -> None:
    with member.mongod_client() as mongod:
        assert mongod.config.sidecars.find_one({"_id": member.mongod_plan.address}) == {
            "_id": member.mongod_plan.address,
            "sidecar": member.address,
        }


def test_sharding_commands_need_a_shard(member: Member) -> None:
    version = {"t": bson.Timestamp(0, 0), "e": bson.ObjectId("0" * 24), "v": bson.Timestamp(0, 0)}
    with member.client() as client:
        assert client.relay.command({"find": "c", "shardVersion": version}, check=False)["code"] == 203
        assert client.admin.command({"shardingState": 1})["enabled"] is False


def test_metrics_and_readiness(member: Member) -> None:
    with urlopen(f"http://127.0.0.1:{member.metrics_port}/readyz") as ready:
        assert ready.status == 200
    with urlopen(f"http://127.0.0.1:{member.metrics_port}/metrics") as metrics:
        text = metrics.read().decode()
    assert 'shardwright_shardd_operations_total{command="hello",outcome="ok"}' in text
    assert "shardwright_shardd_open_connections" in text
