"""Transactions in which updates are previewed: none stays open, and a conflicting one is waited for."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest
import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.operations.key_changing_request import PreviewTransactions
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.transport.client import decode_reply
from tests.integration.raw_client import RawClient
from tests.integration.waiting import eventually
from tests.local_cluster import Client
from tests.shardd.lone_mongod import LoneMongod
from tests.shardd.mini_cluster import Member, MiniCluster
from tests.shardd.operations.test_previewed_upserts import counted, find_and_modify, update
from tests.shardd.router_stand_in import ShardedNamespace

ATTEMPTS = 12
SECONDS_MAX = 10


@pytest.fixture
def member(mini: MiniCluster) -> Member:
    return mini.shards["sh0"].members[0]


@pytest.fixture
def lone(member: Member) -> LoneMongod:
    """The mongod of a shard, without its daemon."""
    plan = member.mongod_plan
    return LoneMongod(plan.address, str(member.daemon.log.parent / plan.socket_name))


def aborted_transactions(mongod: Client) -> int:
    return int(mongod.admin.command("serverStatus")["transactions"]["totalAborted"])


@contextmanager
def document_taken(mongod: Client, db: str, document: dict[str, Any]) -> Iterator[None]:
    """A client's transaction that has inserted a document, and is aborted at the end."""
    with mongod.start_session() as session, session.start_transaction():
        mongod[db].c.insert_one(document, session=session)
        yield
        session.abort_transaction()


@pytest.mark.parametrize("command", [update(counted(100)), find_and_modify(100)], ids=["update", "findAndModify"])
def test_another_transaction_is_waited_for(ranged: ShardedNamespace, member: Member, command: dict[str, Any]) -> None:
    version = ranged.version()
    with member.mongod_client() as mongod, ThreadPoolExecutor(1) as pool:
        before = aborted_transactions(mongod)
        with document_taken(mongod, ranged.db, {"_id": 100, "a": 100}):
            reply = pool.submit(ranged.versioned, command, version=version)
            eventually(lambda: aborted_transactions(mongod) > before + ATTEMPTS, what="it has met the other many times")
        assert reply.result(SECONDS_MAX)["ok"] == 1
        assert [document["n"] for document in ranged.documents()] == [1]


def test_the_wait_ends_with_the_time_limit_of_the_client(ranged: ShardedNamespace, member: Member) -> None:
    with member.mongod_client() as mongod, document_taken(mongod, ranged.db, {"_id": 100, "a": 100}):
        reply = ranged.versioned(find_and_modify(100, maxTimeMS=200))
    assert reply["codeName"] == "MaxTimeMSExpired"


def test_a_preview_of_a_killed_daemon_does_not_block_others(ranged: ShardedNamespace, member: Member) -> None:
    """It is killed between the two statements of the transaction."""
    version = ranged.version()
    with member.mongod_client() as mongod:
        blocked = {
            "failCommands": ["find"],
            "namespace": ranged.namespace,
            "blockConnection": True,
            "blockTimeMS": 2000,
        }
        mongod.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=blocked)
        client = RawClient(member.address)
        client.send_command({**update(counted(100)), "shardVersion": version}, db=ranged.db)
        mongod.admin.command("waitForFailPoint", "failCommand", timesEntered=1, maxTimeMS=30_000)
        member.restart(member.daemon)
        client.socket.close()
    document = {"_id": 100, "a": 100}
    assert ranged.versioned({"insert": "c", "documents": [document], "maxTimeMS": SECONDS_MAX * 1000})["n"] == 1


class _LatePool:
    """Discards everything that it should send."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    async def exchange(self, frame: bytes) -> bytes:
        self.kept.append(frame)
        await trio.sleep_forever()
        raise AssertionError


def test_a_statement_that_arrives_after_its_task_has_ended_begins_no_transaction(lone: LoneMongod) -> None:
    async def test(mongod: LocalMongod) -> None:
        await mongod.command("late", {"create": "c"})
        late = _LatePool()
        transactions = PreviewTransactions(mongod)
        with trio.move_on_after(SECONDS_MAX):
            async with transactions.begin() as transaction:
                working = mongod.pool
                mongod.pool = cast("Any", late)
                with trio.move_on_after(0.01):
                    await transaction.run("late", {"insert": "c", "documents": [{"_id": 1}]})
                mongod.pool = working
        reply = decode_reply(await mongod.pool.exchange(late.kept[0]))
        assert reply["code"] == ErrorCode.TransactionTooOld, reply
        made = await mongod.command("late", {"insert": "c", "documents": [{"_id": 1}], "maxTimeMS": 5000})
        assert made["n"] == 1

    lone.run(test)
