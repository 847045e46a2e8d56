"""Writes that a mongod refuses after a later term has begun, and the term in a mongod's reply."""

from collections.abc import Iterator, Mapping
from typing import Any

import bson
import pytest
import trio
import trio.testing

from shardwright.daemon.sidecar.mongod import REPLICATION_DATA, LocalMongod
from shardwright.daemon.sidecar.term_fence import ASK_FOR_TERM, Reign, TermFence, take_term, working_for
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg, with_checksum
from shardwright.wire.rawbson import OBJECT, append, element
from tests.shardd.lone_mongod import LoneMongod, lone_mongod
from tests.shardd.mini_cluster import Member

DOCUMENT = {"_id": 1, "from": "earlier"}
WRITES = [
    {"insert": "fenced", "documents": [DOCUMENT]},
    {"update": "fenced", "updates": [{"q": {"_id": 1}, "u": DOCUMENT, "upsert": True}]},
    {"delete": "fenced", "deletes": [{"q": {"_id": 0}, "limit": 1}]},
    {"findAndModify": "fenced", "query": {"_id": 2}, "update": {"$set": {"n": 1}}, "upsert": True},
]

METADATA = {"term": bson.Int64(7), "isPrimary": True}
TIMES = {"$clusterTime": {"clusterTime": bson.Timestamp(1, 2)}, "operationTime": bson.Timestamp(1, 2)}


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneMongod]:
    with lone_mongod(tmp_path_factory.mktemp("fence")) as mongod:
        yield mongod


class AnyTerm(LocalMongod):
    """A mongod as seen by a daemon that has just started and considers every term the current one."""

    def __init__(self, mongod: LocalMongod) -> None:
        self.__dict__.update(mongod.__dict__)
        self.fence = TermFence(self)

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        return await self.pool.command(db, command)

    async def check_term_before(self) -> None:
        pass


async def begin(mongod: LocalMongod, term: int) -> None:
    assert mongod.fence is not None
    mongod.fence.end()
    with working_for(Reign(term, 1)):
        await mongod.fence.begin(term)


@pytest.mark.parametrize("later_term", [2, 3])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: next(iter(write)))
def test_a_write_of_an_earlier_term_is_not_executed(lone: LoneMongod, write: dict[str, Any], later_term: int) -> None:
    async def check(mongod: LocalMongod) -> None:
        sleeping, other = AnyTerm(mongod), AnyTerm(mongod)
        await mongod.pool.command("config", {"delete": "fenced", "deletes": [{"q": {}, "limit": 0}]})
        await mongod.pool.command("config", {"insert": "fenced", "documents": [{"_id": 0}]})
        await begin(sleeping, 2)
        await begin(other, later_term)  # in the same term: by a daemon that was started after the first was killed
        with working_for(Reign(2, 1)), pytest.raises(CommandError) as caught:
            await sleeping.write("config", write)
        assert caught.value.code == ErrorCode.InterruptedDueToReplStateChange
        found = await mongod.pool.command("config", {"find": "fenced"})
        assert found["cursor"]["firstBatch"] == [{"_id": 0}]
        with working_for(Reign(later_term, 1)):
            assert (await other.write("config", write)).get("n", 1) == 1

    lone.run(check)


class Delaying(AnyTerm):
    """Delays inserts until a later reign has begun."""

    def __init__(self, mongod: LocalMongod) -> None:
        super().__init__(mongod)
        self.has_begun = trio.Event()

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if "insert" in command:
            await self.has_begun.wait()
        return await super().command(db, command)


def test_a_write_is_not_executed_in_a_later_reign_of_the_same_term(lone: LoneMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        here = Delaying(mongod)
        await begin(here, 4)

        async def write() -> None:
            with working_for(Reign(4, 1)), pytest.raises(CommandError) as caught:
                await here.write("config", {"insert": "delayed", "documents": [DOCUMENT]})
            assert caught.value.code == ErrorCode.InterruptedDueToReplStateChange

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            await begin(here, 4)
            here.has_begun.set()
        found = await mongod.pool.command("config", {"find": "delayed"})
        assert found["cursor"]["firstBatch"] == []

    lone.run(check)


def test_every_write_of_a_term_is_executed_once(lone: LoneMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        here = AnyTerm(mongod)
        await begin(here, 5)
        count = {"q": {"_id": "counter"}, "u": {"$inc": {"n": 1}}, "upsert": True}
        with working_for(Reign(5, 1)):
            await here.write("config", {"insert": "counted", "documents": [{"_id": each} for each in range(1_500)]})

            async def count_some() -> None:
                for _ in range(20):
                    await here.write("config", {"update": "counted", "updates": [count, count]})

            await count_some()
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(count_some)
        found = await mongod.pool.command("config", {"find": "counted", "filter": {"_id": "counter"}})
        assert found["cursor"]["firstBatch"] == [{"_id": "counter", "n": 240}]

    lone.run(check)


def test_writes_wait_for_their_term_to_begin(lone: LoneMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        here = AnyTerm(mongod)
        await begin(here, 6)
        assert here.fence is not None
        here.fence.end()
        ended: list[CommandError] = []

        async def write(term: int) -> None:
            with working_for(Reign(term, 1)):
                try:
                    await here.write("config", {"insert": "waiting", "documents": [{"_id": term}]})
                except CommandError as error:
                    ended.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, 6)
            nursery.start_soon(write, 7)
            await trio.testing.wait_all_tasks_blocked()
            with working_for(Reign(7, 1)):
                await here.fence.begin(7)
        assert [each.code for each in ended] == [ErrorCode.InterruptedDueToReplStateChange]
        found = await mongod.pool.command("config", {"find": "waiting"})
        assert found["cursor"]["firstBatch"] == [{"_id": 7}]

    lone.run(check)


def frame_of(document: dict[str, Any]) -> bytes:
    return op_msg(bson.encode(document), request_id=3, response_to=4)


@pytest.mark.parametrize("before", [{"n": 1, "ok": 1.0}, {"value": {"text": "x" * 100_000}, "ok": 1.0}, {"ok": 0.0}])
@pytest.mark.parametrize("after", [{}, TIMES])
def test_the_term_is_read_and_stripped(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert take_term(frame_of({**before, REPLICATION_DATA: METADATA, **after})) == (frame_of({**before, **after}), 7)


def test_a_reply_without_a_term_is_unchanged() -> None:
    frame = frame_of({"ok": 0.0, **TIMES})
    assert take_term(frame) == (frame, None)


def test_a_value_that_looks_like_a_term_is_ignored() -> None:
    frame = frame_of({"value": {REPLICATION_DATA: {"term": 1}}, "ok": 1.0})
    assert take_term(frame) == (frame, None)


def test_a_value_that_looks_like_a_term_stays_in_the_reply() -> None:
    value = {"value": {REPLICATION_DATA: METADATA}}
    assert take_term(frame_of({**value, REPLICATION_DATA: {"term": bson.Int64(9)}})) == (frame_of(value), 9)


QUOTED = "x\0" + element(REPLICATION_DATA.encode(), OBJECT, bson.encode(METADATA)).decode() + "x"


def test_an_error_that_quotes_what_looks_like_a_term() -> None:
    frame = frame_of({"ok": 0.0, "errmsg": QUOTED, **TIMES})
    assert take_term(frame) == (frame, None)


def test_a_reply_with_a_checksum() -> None:
    reply, term = take_term(with_checksum(frame_of({"n": 1, REPLICATION_DATA: METADATA})))
    assert (OpMsg(reply).body, term) == (bson.encode({"n": 1}), 7)


def test_mongod_reports_its_term_in_every_reply(member: Member) -> None:
    body = append(bson.encode({"ping": 1, "$db": "admin"}), ASK_FOR_TERM)
    with member.mongod_client() as client:
        term = client.admin.command("replSetGetStatus")["term"]
        told = client.admin.command(bson.decode(body) | {"$db": "admin"})
    assert told[REPLICATION_DATA]["term"] == term
