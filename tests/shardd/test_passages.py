"""Passages of a shard daemon: requests that it has learned to pass on are checked against what holds now."""

import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
from bson import Int64
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.metrics import Metrics
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.users import RESERVED_ID_START, SYSTEM, UserName
from shardwright.shardd.context.fail_point_names import HANG_AFTER_BLOCKING_WRITES, SUSPEND_RANGE_DELETION
from shardwright.shardd.metadata.namespace_state import AdmittedPlacement, NamespaceState
from shardwright.shardd.metadata.views import Views
from shardwright.shardd.passages import ShardPassages
from shardwright.shardd.splitting.growth import grown_bytes
from shardwright.shardd.splitting.key_statistics import KeyCounter
from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.passages import EPOCH
from shardwright.wire.request import Request
from tests.fail_points import fail_point
from tests.server_parameters import server_parameter
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace, transaction_numbers

LEARNING = 4
"""After so many similar requests a passage serves them."""

Command = dict[str, Any]


def shard_with(**context: object) -> Any:  # noqa: ANN401 - stands in for a `ShardServer`
    """A shard daemon with the parts that passages use."""
    parameters = SimpleNamespace(passages=SimpleNamespace(is_enabled=True))
    return SimpleNamespace(
        context=SimpleNamespace(metrics=Metrics("shardd", []), options=SimpleNamespace(slow_ms=100), **context),
        components=SimpleNamespace(parameters=parameters),
        key_statistics=SimpleNamespace(counter=KeyCounter(Random(1))),
    )


def find(key: int) -> Command:
    return {"find": "c", "filter": {"a": key}}


def insert(key: int) -> Command:
    return {"insert": "c", "documents": [{"_id": key, "a": key}], "ordered": True}


def update(key: int) -> Command:
    return {"update": "c", "updates": [{"q": {"a": key}, "u": {"$inc": {"n": 1}}}], "ordered": True}


def delete(key: int) -> Command:
    return {"delete": "c", "deletes": [{"q": {"a": key}, "limit": 1}], "ordered": True}


def modify(key: int) -> Command:
    return {"findAndModify": "c", "query": {"a": key}, "update": {"$inc": {"n": 1}}, "new": True}


EACH: dict[str, Callable[[int], Command]] = {
    "find": find,
    "update": update,
    "delete": delete,
    "findAndModify": modify,
}


def taken(mini: MiniCluster, shard: str = "sh0") -> int:
    """Return the number of requests served by passages on a shard."""
    return counted(mini, "taken", shard)


def counted(mini: MiniCluster, outcome: str, shard: str = "sh0") -> int:
    """Return the number of times that passages had an outcome on a shard."""
    found = re.search(rf'passages_total\{{outcome="{outcome}"\}} (\S+)', metrics_page(mini, shard))
    assert found is not None
    return int(float(found[1]))


def inserts_with_duplicate_keys(mini: MiniCluster, shard: str = "sh0") -> int:
    found = re.search(r'operations_total\{command="insert",outcome="DuplicateKey"\} (\S+)', metrics_page(mini, shard))
    return 0 if found is None else int(float(found[1]))


def metrics_page(mini: MiniCluster, shard: str) -> str:
    port = mini.shards[shard].members[0].metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text: str = page.read().decode()
    return text


@pytest.fixture
def learned(ranged: ShardedNamespace, mini: MiniCluster) -> ShardedNamespace:
    """A collection with documents, of whose commands the first shard has passages."""
    ranged.insert(*({"_id": key, "a": key} for key in range(10, 60)))
    before = taken(mini)
    for make in EACH.values():
        for key in range(40, 40 + LEARNING):
            assert ranged.versioned(make(key))["ok"] == 1.0
    assert taken(mini) - before >= len(EACH)
    return ranged


class TestServed:
    def test_replies_are_those_of_the_ordinary_way(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        shard = mini.kept_client(mini.shards["sh0"].members[0])
        commands = [find(20), update(20), modify(20), find(20), delete(20), find(20), update(20), modify(20)]
        before = taken(mini)
        with_passages = [learned.versioned(each) for each in commands]
        assert taken(mini) - before == len(commands)
        with server_parameter(shard, "enablePassages", False):
            again = [learned.versioned({**each}) for each in map(_on_next_key, commands)]
            assert taken(mini) - before == len(commands)
        assert [_without_key(each) for each in again] == [_without_key(each) for each in with_passages]

    def test_a_write_with_errors_is_not_counted_as_ok(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        for key in range(100, 100 + LEARNING):
            assert learned.versioned(insert(key))["n"] == 1
        before, taken_before = inserts_with_duplicate_keys(mini), taken(mini)
        assert learned.versioned(insert(20))["writeErrors"][0]["code"] == 11000
        assert inserts_with_duplicate_keys(mini) - before == 1
        assert taken(mini) - taken_before == 1

    @pytest.mark.parametrize(
        ("further", "is_open_passed_on"),
        [({}, True), ({"limit": 12}, True), ({"projection": {"_id": 0, "a": 0}}, False)],
        ids=["unlimited", "limited", "without key"],
    )
    def test_reads_of_a_range(
        self, learned: ShardedNamespace, mini: MiniCluster, further: Command, is_open_passed_on: bool
    ) -> None:
        def read(low: int) -> Command:
            return {"find": "c", "filter": {"_id": {"$gte": low}}, "batchSize": 12, **further}

        member = mini.shards["sh0"].members[0]
        with member.mongod_client() as mongod:  # a document of the other shard
            mongod[learned.db]["c"].insert_one({"_id": 30.5, "a": 5})
        for low in range(50, 50 + LEARNING):
            assert len(learned.versioned(read(low))["cursor"]["firstBatch"]) == 60 - low
        before = taken(mini)
        assert len(learned.versioned(read(57))["cursor"]["firstBatch"]) == 3
        assert taken(mini) == before + 1
        # A cursor that is left open has a filter, unless its documents show where they belong.
        opened = learned.versioned(read(25))["cursor"]
        with server_parameter(mini.kept_client(member), "enablePassages", False):
            ordinary = learned.versioned(read(25))["cursor"]
        assert taken(mini) == before + 1 + is_open_passed_on
        assert opened["firstBatch"] == ordinary["firstBatch"]
        assert bool(opened["id"]) == bool(ordinary["id"]) == (further != {"limit": 12})
        if opened["id"]:
            ends = [learned.run({"getMore": each["id"], "collection": "c"})["cursor"] for each in (opened, ordinary)]
            assert [(len(each["nextBatch"]), each["id"]) for each in ends] == [(19 + is_open_passed_on, 0)] * 2

    @pytest.mark.parametrize(
        ("level", "is_taken"),
        [("local", True), ("majority", True), ("available", True), ("linearizable", False), ("snapshot", False)],
    )
    def test_read_concerns(self, learned: ShardedNamespace, mini: MiniCluster, level: str, is_taken: bool) -> None:
        before = taken(mini)
        for key in range(50, 50 + LEARNING):
            reply = learned.versioned({**find(key), "readConcern": {"level": level}})
            assert len(reply["cursor"]["firstBatch"]) == 1
        assert (taken(mini) > before) == is_taken

    def test_reads_after_a_time(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        def after(time: Timestamp) -> Command:
            concern = {"readConcern": {"level": "local", "afterClusterTime": time}, "$clusterTime": signed(time)}
            return {**find(45), **concern, "shardVersion": learned.version()}

        def signed(time: Timestamp) -> Command:
            return {"clusterTime": time, "signature": {"hash": Binary(bytes(20)), "keyId": Int64(0)}}

        with connected(mini, "sh0") as connection:

            def ask(command: Command) -> dict[str, Any]:
                connection.sendall(op_msg(bson.encode({**command, "$db": learned.db}), request_id=1))
                return bson.decode(connection.recv(65_536)[21:])

            for _ in range(LEARNING):
                time = learned.gossiping({**update(45), "shardVersion": learned.version()})["operationTime"]
                reply = ask(after(time))
                assert reply["cursor"]["firstBatch"][0]["a"] == 45
            before, declined = taken(mini), counted(mini, "declined")
            assert ask(after(time))["ok"] == 1.0
            assert taken(mini) == before + 1
            # The oplog of an idle shard does not reach another shard's time by itself.
            later = Timestamp(time.time, time.inc + 50)
            assert ask(after(later))["operationTime"] >= later
            assert (taken(mini), counted(mini, "declined")) == (before + 1, declined + 1)
            assert ask(after(later))["ok"] == 1.0
            assert taken(mini) == before + 2

    def test_inserts_in_the_body(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        before = taken(mini)
        for key in range(300, 300 + 2 * LEARNING):
            document = {"_id": key, "a": key, "text": "x" * (key - 300)}
            assert learned.versioned({"insert": "c", "documents": [document], "ordered": True})["n"] == 1
            assert learned.versioned(find(key))["cursor"]["firstBatch"] == [document]
        assert taken(mini) - before >= 2 * LEARNING + LEARNING

    def test_errors_of_mongod(self, learned: ShardedNamespace) -> None:
        for key in range(100, 100 + LEARNING):
            assert learned.versioned(_with_session(insert(key)))["n"] == 1
        reply = learned.versioned(_with_session(insert(100)))
        assert reply["writeErrors"][0]["code"] == 11000

    def test_retryable_writes(self, learned: ShardedNamespace) -> None:
        numbers = [next(transaction_numbers) for _ in range(1 + LEARNING)]
        for number in numbers:
            assert learned.retryable(update(30), number=number)["nModified"] == 1
        assert learned.retryable(update(30), number=numbers[-1])["retriedStmtIds"] == [0]
        [document] = learned.versioned(find(30))["cursor"]["firstBatch"]
        assert document["n"] == 1 + LEARNING

    def test_a_session_with_writes_on_another_shard(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        """Only the newest write, and older ones, can have been executed there."""
        mine, other = b"m" * 16, b"o" * 16
        with connected(mini, "sh0") as connection:
            assert _write_in(connection, learned, "sh0", mine, 5)["n"] == 1
        learned.split([{"a": 30}], low={"a": 10})
        learned.move({"a": 30}, learned.chunks()[-1]["max"], "sh1")
        with connected(mini, "sh1") as connection:
            for number in range(1, 1 + LEARNING):
                assert _write_in(connection, learned, "sh1", other, number)["n"] == 1
            before = taken(mini, "sh1"), counted(mini, "learned", "sh1")
            assert before[0]
            assert _write_in(connection, learned, "sh1", mine, 5)["retriedStmtIds"] == [0]
            assert _write_in(connection, learned, "sh1", mine, 4)["codeName"] == "TransactionTooOld"
            assert (taken(mini, "sh1"), counted(mini, "learned", "sh1")) == before
            for number in range(6, 6 + LEARNING):
                assert _write_in(connection, learned, "sh1", mine, number)["n"] == 1
            assert (taken(mini, "sh1"), counted(mini, "learned", "sh1")) == (before[0] + LEARNING, before[1])
        [document] = learned.versioned(find(45), "sh1")["cursor"]["firstBatch"]
        assert document["n"] == 1 + 2 * LEARNING

    def test_a_session_is_no_reason_to_learn_again(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        session, number = b"s" * 16, Int64(1)
        fields = {"lsid": {"id": Binary(session, 4)}, "txnNumber": number, "autocommit": False}
        begin = {**find(45), **fields, "startTransaction": True, "shardVersion": learned.version(), "$db": learned.db}
        with connected(mini, "sh0") as connection, connected(mini, "sh0") as other:
            for each in range(1, 1 + LEARNING):
                assert _write_in(connection, learned, "sh0", b"o" * 16, each)["n"] == 1
            other.sendall(op_msg(bson.encode(begin), request_id=1))
            assert bson.decode(other.recv(65_536)[21:])["ok"] == 1.0
            before = taken(mini), counted(mini, "learned")
            assert _write_in(connection, learned, "sh0", session, 2)["n"] == 1
            assert (taken(mini), counted(mini, "learned")) == before

    def test_an_update_that_may_change_the_shard_key(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        before = taken(mini)
        for key in range(20, 20 + LEARNING):
            change = {"update": "c", "updates": [{"q": {"a": key}, "u": {"$set": {"a": key}}}]}
            assert learned.versioned(change)["ok"] == 1.0
        assert taken(mini) == before

    def test_a_reserved_session(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        command = {**find(30), "shardVersion": learned.version(), "$db": learned.db}
        with connected(mini, "sh0") as connection:

            def run(identity: bytes) -> dict[str, Any]:
                lsid = {"lsid": {"id": Binary(identity, 4)}}
                connection.sendall(op_msg(bson.encode({**command, **lsid}), request_id=1))
                return bson.decode(connection.recv(65_536)[21:])

            before = taken(mini)
            for _ in range(LEARNING):
                assert run(b"x" * 16)["ok"] == 1.0
            assert taken(mini) > before
            assert run(RESERVED_ID_START.ljust(16, b"x"))["codeName"] == "Unauthorized"

    def test_a_transaction_that_the_daemon_does_not_know(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        """As after a restart of the daemon: mongod has to abort it, since no critical section waits for it."""
        member = mini.shards["sh0"].members[0]
        versions = {"shardVersion": learned.version(), "$db": learned.db}
        with connected(mini, "sh0") as connection, member.mongod_client() as mongod:

            def read(lsid: object, number: int) -> dict[str, Any]:
                fields = {"lsid": lsid, "txnNumber": Int64(number), "autocommit": False}
                connection.sendall(op_msg(bson.encode({**find(30), **fields, **versions}), request_id=1))
                return bson.decode(connection.recv(65_536)[21:])

            for number in range(1, 1 + LEARNING):
                assert read({"id": Binary(b"y" * 16, 4)}, number)["codeName"] == "NoSuchTransaction"
            with mongod.start_session() as session, session.start_transaction():
                assert mongod[learned.db].c.find_one({"a": 30}, session=session)
                number = session._server_session.transaction_id
                assert read(session.session_id, number)["codeName"] == "NoSuchTransaction"
                session.abort_transaction()


class TestChanged:
    @pytest.mark.parametrize("kind", EACH)
    def test_a_range_has_moved(self, learned: ShardedNamespace, kind: str) -> None:
        version = learned.version()
        assert learned.versioned(EACH[kind](45), version=version)["ok"] == 1.0
        learned.split([{"a": 30}], low={"a": 10})
        learned.move({"a": 30}, learned.chunks()[-1]["max"], "sh1")
        reply = learned.versioned(EACH[kind](45), version=version)
        code = reply.get("code") or reply["writeErrors"][0]["code"]
        assert code == 13388

    def test_orphans_stay_hidden(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        shard = mini.kept_client(mini.shards["sh0"].members[0])
        for _ in range(LEARNING):
            assert learned.versioned({"find": "c", "filter": {"_id": 45}})["cursor"]["firstBatch"]
        with fail_point(shard, SUSPEND_RANGE_DELETION):
            learned.split([{"a": 30}], low={"a": 10})
            learned.move({"a": 30}, learned.chunks()[-1]["max"], "sh1")
            for _ in range(2 * LEARNING):
                assert learned.versioned({"find": "c", "filter": {"_id": 45}})["cursor"]["firstBatch"] == []
                update_by_id = {"update": "c", "updates": [{"q": {"_id": 45}, "u": {"$inc": {"n": 1}}}]}
                assert learned.versioned(update_by_id)["n"] == 0

    @pytest.mark.parametrize("kind", ["update", "delete", "findAndModify"])
    def test_writes_wait_for_a_critical_section(self, learned: ShardedNamespace, mini: MiniCluster, kind: str) -> None:
        shard = mini.kept_client(mini.shards["sh0"].members[0])
        version = learned.version()
        limited = {**EACH[kind](45), "maxTimeMS": 2_000}
        learned.split([{"a": 30}], low={"a": 10})
        for key in range(46, 46 + LEARNING):
            assert learned.versioned({**EACH[kind](key), "maxTimeMS": 2_000}, version=version)["ok"] == 1.0
        with fail_point(shard, HANG_AFTER_BLOCKING_WRITES) as hanging:
            move = threading.Thread(target=learned.move, args=({"a": 30}, learned.chunks()[-1]["max"], "sh1"))
            move.start()
            hanging.wait_entered()
            reply = learned.versioned(limited, version=version)
            assert reply["codeName"] == "MaxTimeMSExpired"
            assert learned.versioned(find(45), version=version)["ok"] == 1.0
        move.join()

    def test_a_view_in_place_of_a_collection(self, learned: ShardedNamespace, mini: MiniCluster) -> None:
        database = mini.kept_client(mini.shards["sh0"].members[0])[learned.db]
        versions = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": learned.database_version}
        learned.run({"create": "u", **versions})
        learned.run({"insert": "u", "documents": [{"_id": 1, "a": 1}], **versions})
        read = {"find": "u", "filter": {"a": 1}, **versions}
        for _ in range(LEARNING + 1):
            assert learned.run(read)["cursor"]["firstBatch"] == [{"_id": 1, "a": 1}]
        assert database.command({"drop": "u", **versions})["ok"] == 1.0
        assert database.command({"create": "u", "viewOn": "c", "pipeline": [], **versions})["ok"] == 1.0
        assert learned.run(read)["codeName"] == "CommandOnShardedViewNotSupportedOnMongod"


def test_a_view_in_place_of_a_collection_during_the_operation() -> None:
    views, state = Views(cast("Any", None), lambda: True), NamespaceState("shop.u", "sh0")
    state.learn(None)
    passages = ShardPassages(shard_with(recovery_gate=SimpleNamespace(is_open=True), views=views))
    client = cast("Any", SimpleNamespace(is_answered_verbatim=True, permit=b"", trace=None))
    read = {**find(1), "find": "u", "shardVersion": UNSHARDED.to_document(), "$db": "shop"}
    request = Request(OpMsg(op_msg(bson.encode(read), request_id=1)))

    def learned_when(known: object) -> int:
        views._known = {"shop.u": cast("Any", known)}
        for _ in range(2):
            passages.learn(client, request, b"", state, AdmittedPlacement.of(state), EPOCH.number)
        return passages._outcomes["learned"]

    assert learned_when(object()) == 0
    assert learned_when(None) > 0


@pytest.mark.parametrize("is_in_body", [True, False], ids=["array", "sequence"])
@pytest.mark.parametrize("size", [0, 7, 300])
def test_inserts_make_a_collection_grow_as_on_the_ordinary_way(is_in_body: bool, size: int) -> None:
    state = NamespaceState("shop.c", "sh0")
    state.learn(None)

    def request(size: int) -> Request:
        document = {"_id": 1, "text": "x" * size}
        command: Command = {"insert": "c", "ordered": True, "shardVersion": UNSHARDED.to_document(), "$db": "shop"}
        if is_in_body:
            return Request(OpMsg(op_msg(bson.encode({**command, "documents": [document]}), request_id=1)))
        section = encode_sequence(b"documents", [bson.encode(document)])
        return Request(OpMsg(op_msg(bson.encode(command), request_id=1, sections=section)))

    passage = ShardPassages(shard_with())._passage_of(request(5), state, AdmittedPlacement.of(state), EPOCH.number)
    assert passage is not None
    other = request(size)
    assert passage.is_of(other.message.frame)
    assert passage.grown_bytes(other.message.frame, b"") == grown_bytes(other, b"")


@contextmanager
def connected(mini: MiniCluster, shard: str) -> Iterator[socket.socket]:
    """A connection to a shard, on which requests of all sessions can be sent."""
    host, _, port = mini.shards[shard].members[0].address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        yield connection


def _write_in(
    connection: socket.socket, learned: ShardedNamespace, shard: str, session: bytes, number: int
) -> dict[str, Any]:
    """Execute a retryable write in a session that clients of all shards may have."""
    fields = {"lsid": {"id": Binary(session, 4)}, "txnNumber": Int64(number)}
    command = {**update(45), **fields, "shardVersion": learned.version(shard), "$db": learned.db}
    connection.sendall(op_msg(bson.encode(command), request_id=1))
    return bson.decode(connection.recv(65_536)[21:])


def _with_session(command: Command) -> Command:
    return {**command, "txnNumber": Int64(next(transaction_numbers))}


def _on_next_key(command: Command) -> Command:
    """The command about the next document, which has not been changed yet."""
    changed = dict(command)
    for name in ("filter", "query"):
        if name in changed:
            changed[name] = {"a": 21}
    for name in ("updates", "deletes"):
        if name in changed:
            changed[name] = [{**changed[name][0], "q": {"a": 21}}]
    return changed


def _without_key(reply: Any) -> str:  # noqa: ANN401 - a reply
    return re.sub(r"\b2[01]\b", "key", str(reply))


def test_only_members_of_a_closed_cluster_have_passages() -> None:
    client = cast("Any", SimpleNamespace(permit=None, log_in_changed=lambda **_: None))
    upstream = Upstream(cast("Any", None), client)
    permits = []
    for user in (SYSTEM, UserName("ann", "admin"), SYSTEM, None):
        upstream.note_user(user, [])
        permits.append(client.permit)
    assert permits == [b"", None, b"", None]
    passages = ShardPassages(shard_with())
    assert passages.begin(client, op_msg(bson.encode(find(1)), request_id=1)) is None
    assert passages._outcomes["unknown"] == 1
