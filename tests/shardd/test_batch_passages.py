"""Passages of ``getMore`` in a shard daemon check the current state of the cursor."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
from bson import Int64
from bson.binary import Binary

from shardwright.daemon.metrics import Metrics
from shardwright.daemon.users import RESERVED_ID_START
from shardwright.shardd.batch_passages import ShardBatchPassages
from shardwright.shardd.cursor_batches import BegunBatch
from shardwright.shardd.orphans.open_cursors import CursorsInUse
from shardwright.wire.message import EXHAUST_ALLOWED, OpMsg, op_msg
from shardwright.wire.passages import EPOCH
from shardwright.wire.request import Request
from tests.server_parameters import server_parameter
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace
from tests.shardd.test_passages import LEARNING, taken

Command = dict[str, Any]


def get_more(cursor_id: int, size: int = 2, **more: Any) -> Command:  # noqa: ANN401
    return {"getMore": Int64(cursor_id), "collection": "c", "batchSize": size, **more}


def open_cursor(ranged: ShardedNamespace) -> int:
    opened = ranged.versioned({"find": "c", "filter": {"_id": {"$gte": 10}}, "batchSize": 2})["cursor"]
    assert opened["id"]
    return int(opened["id"])


def test_batches_are_those_of_the_ordinary_way(ranged: ShardedNamespace, mini: MiniCluster) -> None:
    ranged.insert(*({"_id": key, "a": key} for key in range(10, 60)))

    def read_all() -> list[Any]:
        cursor_id = open_cursor(ranged)
        replies: list[Any] = []
        while cursor_id:
            reply = ranged.run(get_more(cursor_id))
            cursor_id = reply["cursor"]["id"]
            replies.append(reply["cursor"]["nextBatch"])
        replies.append(ranged.run(get_more(5)))
        return replies

    read_all()
    before = taken(mini)
    with_passages = read_all()
    assert taken(mini) - before >= 20
    with server_parameter(mini.kept_client(mini.shards["sh0"].members[0]), "enablePassages", False):
        before = taken(mini)
        assert read_all()[:-1] == with_passages[:-1]
        assert taken(mini) == before
    assert with_passages[-1]["codeName"] == "CursorNotFound"
    assert [each for batch in with_passages[:-1] for each in batch] == [{"_id": key, "a": key} for key in range(12, 60)]


def test_documents_that_arrive_are_hidden_from_a_cursor(ranged: ShardedNamespace, mini: MiniCluster) -> None:
    ranged.insert(*({"_id": key, "a": key} for key in range(10, 60)))
    for _ in range(LEARNING):
        ranged.run(get_more(open_cursor(ranged)))
    cursor_id, before = open_cursor(ranged), taken(mini)
    assert len(ranged.run(get_more(cursor_id))["cursor"]["nextBatch"]) == 2
    assert taken(mini) == before + 1
    ranged.insert({"_id": 100, "a": 5}, {"_id": 101, "a": 6}, shard="sh1")
    ranged.move({"a": 0}, {"a": 10}, "sh0")
    found = []
    while cursor_id:
        batch = ranged.run(get_more(cursor_id))["cursor"]
        cursor_id = batch["id"]
        found += [each["_id"] for each in batch["nextBatch"]]
    assert found == list(range(14, 60))


class Connection:
    """A connection to mongod that is not used."""

    is_quiet = True


class Parts:
    """A daemon's parts and a client that allow a passage."""

    def __init__(self) -> None:
        self.in_use = CursorsInUse()
        self.fenced: set[bytes] = set()
        self.further: set[bytes] = set()
        self.inherited = SimpleNamespace(are_gone=True)
        self.connection = Connection()
        self.client: Any = SimpleNamespace(
            is_answered_verbatim=True,
            is_disconnected=False,
            permit=b"",
            trace=None,
            state=SimpleNamespace(connection=self.connection),
        )
        context = SimpleNamespace(
            metrics=Metrics("shardd", ["getMore"]), open_cursors=SimpleNamespace(in_use=self.in_use)
        )
        shard = SimpleNamespace(
            context=context,
            components=SimpleNamespace(parameters=SimpleNamespace(passages=SimpleNamespace(is_enabled=True))),
            fenced_cursors=self.fenced,
            inherited_cursors=self.inherited,
        )
        involved = SimpleNamespace(has=self.further.__contains__)
        self.passages = _Passages(cast("Any", shard), cast("Any", involved))

    def learn(self, frame: bytes, reply: bytes | None = None) -> int:
        """Offer a frame twice; return the number of passages."""
        for _ in range(2):
            self.passages.learn_batch(self.client, Request(OpMsg(frame)), OK if reply is None else reply, EPOCH.number)
        return self.passages._outcomes["learned"]


class _Passages(ShardBatchPassages):
    """Passages of ``getMore`` alone."""

    def _begin(self, passage: Any, client: Any, received: bytes) -> BegunBatch | None:  # noqa: ANN401
        return self._begin_batch(passage, client, received)

    def finish(self, client: Any, begun: Any, reply: bytes) -> bytes | None:  # noqa: ANN401
        return self._finish_batch(client, begun, reply)


def frame_of(cursor_id: int = 7, flags: int = 0, **more: Any) -> bytes:  # noqa: ANN401
    return op_msg(bson.encode({**get_more(cursor_id), **more, "$db": "shop"}), request_id=1, flags=flags)


ID = (7).to_bytes(8, "little")
SESSION: Command = {"lsid": {"id": Binary(bytes(16), 4)}}
OK = op_msg(bson.encode({"cursor": {"nextBatch": [], "id": Int64(7), "ns": "shop.c"}, "ok": 1.0}), request_id=2)
FAILED = op_msg(bson.encode({"ok": 0.0, "errmsg": "no", "code": 43}), request_id=2)


CHANGES: dict[str, Callable[[Parts], object]] = {
    "batches are held back": lambda parts: setattr(parts.in_use, "is_held", True),
    "cursors of an earlier process": lambda parts: setattr(parts.inherited, "are_gone", False),
    "a cursor that hides a range": lambda parts: parts.fenced.add(ID),
    "a cursor that reads further namespaces": lambda parts: parts.further.add(ID),
    "a connection in use": lambda parts: setattr(parts.connection, "is_quiet", False),
    "no connection": lambda parts: setattr(parts.client.state, "connection", None),
    "a client that leaves": lambda parts: setattr(parts.client, "is_disconnected", True),
    "a client that logs in": lambda parts: setattr(parts.client, "permit", None),
    "a new epoch": lambda _: EPOCH.bump(),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_what_changes_is_obeyed_at_once(change: str) -> None:
    parts = Parts()
    assert parts.learn(frame_of(**SESSION)) == 1
    begun = parts.passages.begin(parts.client, frame_of(**SESSION))
    assert isinstance(begun, BegunBatch)
    assert ID in parts.in_use
    assert begun.frame == frame_of(**SESSION)
    assert parts.passages.finish(parts.client, begun, OK) is OK
    assert ID not in parts.in_use
    CHANGES[change](parts)
    assert parts.passages.begin(parts.client, frame_of(**SESSION)) is None
    assert ID not in parts.in_use


@pytest.mark.parametrize("change", ["a cursor that hides a range", "a client that leaves"])
def test_what_changes_during_a_batch_is_left_to_the_ordinary_way(change: str) -> None:
    parts = Parts()
    parts.learn(frame_of())
    begun = parts.passages.begin(parts.client, frame_of())
    assert isinstance(begun, BegunBatch)
    CHANGES[change](parts)
    assert parts.passages.finish(parts.client, begun, OK) is None
    assert ID in parts.in_use
    begun.reading.end()


def test_errors_are_left_to_the_ordinary_way() -> None:
    parts = Parts()
    parts.learn(frame_of())
    begun = parts.passages.begin(parts.client, frame_of())
    assert begun is not None
    assert parts.passages.finish(parts.client, begun, FAILED) is None


def test_reserved_sessions_are_refused() -> None:
    parts = Parts()
    assert parts.learn(frame_of(**SESSION)) == 1
    reserved: Command = {"lsid": {"id": Binary(RESERVED_ID_START.ljust(16, b"\0"), 4)}}
    assert parts.passages.begin(parts.client, frame_of(**reserved)) is None


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(flags=EXHAUST_ALLOWED),
        frame_of(txnNumber=Int64(1), autocommit=False, **SESSION),
        frame_of(readConcern={"level": "local"}),
        frame_of(comment="x" * 3_000),
        op_msg(bson.encode({"getMore": 7, "collection": "c", "$db": "shop"}), request_id=1),
    ],
)
def test_what_is_not_learned(frame: bytes) -> None:
    assert Parts().learn(frame) == 0


def test_errors_are_not_learned() -> None:
    assert Parts().learn(frame_of(), FAILED) == 0
