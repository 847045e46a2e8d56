"""The retryable writes that a donor hands out, from the session records and the oplog of a real mongod."""

from itertools import count
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.local_mongod.shard_key_index import all_documents
from shardwright.shardd.session_history.donor_history import BATCH_BYTES_MAX
from shardwright.shardd.session_history.session_chains import OPLOG
from shardwright.shardd.session_history.statement import INCOMPLETE_HISTORY, ExecutedStatement
from shardwright.sharding.namespace import Namespace
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from tests.shardd.lone_mongod import LoneMongod
from tests.shardd.session_history.history_writes import Session, donor_history, drained, of_session, reply_to

_databases = count()


@pytest.fixture
def namespace() -> Namespace:
    return Namespace(f"history{next(_databases)}", "c")


def insert(*keys: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a command
    return {"insert": "c", "documents": [{"_id": key, "a": key} for key in keys], **fields}


def update(*updates: dict[str, Any]) -> dict[str, Any]:
    return {"update": "c", "updates": list(updates)}


async def oplog_of(mongod: LocalMongod, namespace: Namespace) -> list[bytes]:
    """The oplog entries that a migration's source would pass to its history."""
    name = str(namespace)
    query = {"$or": [{"ns": name}, {"o.applyOps.ns": name}]}
    return await all_documents(mongod, OPLOG, {"filter": query})


def ids(statements: list[ExecutedStatement]) -> list[int]:
    return [each.statement_id for each in statements]


def test_inserts_out_of_range_are_left_out(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, session.write(1, insert(-1, 0, 5, 10)))
        history = await donor_history(mongod, namespace, {"a": 0}, {"a": 10})
        assert not history.is_drained
        told = of_session(await drained(history), session)
        assert history.is_drained
        assert ids(told) == [1, 2]
        assert [each.op for each in told] == ["i", "i"]
        assert [bson.decode(each.inserted_id or b"") for each in told] == [{"_id": 0}, {"_id": 5}]
        assert [each.image for each in told] == [None, None]

    lone.run(test)


def test_the_keys_of_updates_and_deletes_are_unknown(lone: LoneMongod, namespace: Namespace) -> None:
    updating, deleting = Session(), Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, insert(20, 21))
        change = update({"q": {"_id": 20}, "u": {"$inc": {"b": 1}}}, {"q": {"_id": 99}, "u": {"$inc": {"b": 1}}})
        await reply_to(mongod.pool, namespace.db, updating.write(7, change))
        delete = {"delete": "c", "deletes": [{"q": {"_id": 21}, "limit": 1}], "stmtIds": [3]}
        await reply_to(mongod.pool, namespace.db, deleting.write(1, delete))
        statements = await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10}))
        (updated,), (deleted,) = of_session(statements, updating), of_session(statements, deleting)
        assert (updated.op, updated.statement_id, updated.write.txn_number) == ("u", 0, 7)
        assert (deleted.op, deleted.statement_id) == ("d", 3)

    lone.run(test)


@pytest.mark.parametrize(("direction", "inside"), [(1, [0, 2, 4]), ("hashed", [1, 3, 5])])
def test_if_the_id_is_the_shard_key_all_keys_are_known(
    lone: LoneMongod, namespace: Namespace, direction: object, inside: list[int]
) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, insert(5, 15, 6, 16))
        for number, key in enumerate((5, 15)):
            change = {**update({"q": {"_id": key}, "u": {"$inc": {"b": 1}}}), "stmtIds": [number]}
            await reply_to(mongod.pool, namespace.db, session.write(1, change))
        for number, key in enumerate((6, 16), 2):
            delete = {"delete": "c", "deletes": [{"q": {"_id": key}, "limit": 1}], "stmtIds": [number]}
            await reply_to(mongod.pool, namespace.db, session.write(1, delete))
        for number, key in enumerate((7, 17), 4):
            await reply_to(mongod.pool, namespace.db, session.write(1, insert(key, stmtIds=[number])))
        low, high = (0, 10) if direction == 1 else (bson.Int64(-(2**62)), bson.Int64(2**62))
        history = await donor_history(mongod, namespace, {"_id": low}, {"_id": high}, direction=direction)
        told = ids(of_session(await drained(history), session))
        assert told == inside if direction == 1 else set(told) < set(range(6))

    lone.run(test)


def test_other_collections_are_left_out(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, session.write(1, {**insert(1), "insert": "other"}))
        assert of_session(await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10})), session) == []

    lone.run(test)


def test_a_chain_over_more_than_a_second(lone: LoneMongod, namespace: Namespace) -> None:
    session, other = Session(), Session()

    async def test(mongod: LocalMongod) -> None:
        for number in range(3):
            await reply_to(mongod.pool, namespace.db, session.write(1, insert(number, stmtIds=[number])))
            began = (await mongod.command("admin", {"ping": 1}))["operationTime"].time
            while (await mongod.command("admin", {"ping": 1}))["operationTime"].time < began + 2:
                await mongod.command("admin", {"appendOplogNote": 1, "data": {"msg": "time passes"}})
        await reply_to(mongod.pool, namespace.db, other.write(1, insert(4)))
        statements = await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10}))
        assert ids(of_session(statements, session)) == [0, 1, 2]
        (alone,) = of_session(statements, other)
        assert bson.decode(alone.image or b"") == {"_id": 4, "a": 4}

    lone.run(test)


def test_images_of_find_and_modify(lone: LoneMongod, namespace: Namespace) -> None:
    before, after, removed = Session(), Session(), Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, insert(1, 2, 3))
        modify = {"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"b": 1}}}
        await reply_to(mongod.pool, namespace.db, before.write(1, modify))
        await reply_to(mongod.pool, namespace.db, after.write(1, {**modify, "query": {"_id": 2}, "new": True}))
        remove = {"findAndModify": "c", "query": {"_id": 3}, "remove": True}
        await reply_to(mongod.pool, namespace.db, removed.write(1, remove))
        for history in [
            await donor_history(mongod, namespace, {"a": 0}, {"a": 10}),
            await observing(mongod, namespace),
        ]:
            statements = await drained(history)
            images = [of_session(statements, session)[0] for session in (before, after, removed)]
            assert [each.image_kind for each in images] == ["preImage", "postImage", "preImage"]
            assert [bson.decode(each.image or b"") for each in images] == [
                {"_id": 1, "a": 1},
                {"_id": 2, "a": 2, "b": 1},
                {"_id": 3, "a": 3},
            ]

    async def observing(mongod: LocalMongod, namespace: Namespace) -> Any:  # noqa: ANN401
        history = await donor_history(mongod, namespace, {"a": 0}, {"a": 10})
        await drained(history)
        for entry in await oplog_of(mongod, namespace):
            history.observe(entry)
        return history

    lone.run(test)


def test_large_images_come_in_several_batches(lone: LoneMongod, namespace: Namespace) -> None:
    sessions = [Session() for _ in range(5)]

    async def test(mongod: LocalMongod) -> None:
        history = await donor_history(mongod, namespace, {"a": 0}, {"a": 10})
        await drained(history)
        for key, session in enumerate(sessions):
            document = {"_id": key, "a": key, "text": "x" * (6 << 20)}
            await reply_to(mongod.pool, namespace.db, {"insert": "c", "documents": [document]})
            modify = {"findAndModify": "c", "query": {"_id": key}, "update": {"$set": {"b": 1}}}
            await reply_to(mongod.pool, namespace.db, session.write(1, modify))
        for entry in await oplog_of(mongod, namespace):
            history.observe(entry)
        batches = []
        while not history.is_drained:
            batches.append(await history.next_batch())
        assert max(sum(map(len, batch)) for batch in batches) <= BATCH_BYTES_MAX + BSON_OBJECT_BYTES_MAX
        statements = [statement for batch in batches for statement in batch]
        assert all(of_session(statements, session)[0].image for session in sessions)

    lone.run(test)


def test_images_in_the_oplog(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, insert(1))
        parameter = "storeFindAndModifyImagesInSideCollection"
        await mongod.command("admin", {"setParameter": 1, parameter: False})
        try:
            modify = {"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"b": 1}}, "new": True}
            await reply_to(mongod.pool, namespace.db, session.write(1, modify))
        finally:
            await mongod.command("admin", {"setParameter": 1, parameter: True})
        (told,) = of_session(await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10})), session)
        assert (told.image_kind, bson.decode(told.image or b"")) == ("postImage", {"_id": 1, "a": 1, "b": 1})

    lone.run(test)


def test_a_lost_image_is_left_out(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, insert(1))
        modify = {"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"b": 1}}}
        await reply_to(mongod.pool, namespace.db, session.write(1, modify))
        query = {"_id.id": bson.Binary.from_uuid(session.id)}
        delete = {
            "delete": "image_collection",
            "deletes": [{"q": query, "limit": 1}],
            "writeConcern": {"w": "majority"},
        }
        await mongod.write("config", delete)
        (told,) = of_session(await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10})), session)
        assert (told.op, told.image, told.image_kind) == ("u", None, None)

    lone.run(test)


def test_truncated_history_is_marked_as_incomplete(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, session.write(5, insert(1)))
        query = {"_id.id": bson.Binary.from_uuid(session.id)}
        lose = {"q": query, "u": {"$set": {"lastWriteOpTime.ts": Timestamp(1, 1)}}}
        await mongod.write("config", {"update": "transactions", "updates": [lose], "writeConcern": {"w": "majority"}})
        (told,) = of_session(await drained(await donor_history(mongod, namespace, {"a": 0}, {"a": 10})), session)
        assert (told.statement_id, told.write.txn_number) == (INCOMPLETE_HISTORY, 5)

    lone.run(test)


def test_a_transaction_is_marked_as_incomplete(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        history = await donor_history(mongod, namespace, {"a": 0}, {"a": 10})
        transaction = {"autocommit": False, "startTransaction": True}
        await reply_to(mongod.pool, namespace.db, session.write(2, {**insert(1), **transaction}))
        commit = {"commitTransaction": 1, "autocommit": False, "writeConcern": {"w": "majority"}}
        await reply_to(mongod.pool, "admin", session.write(2, commit))
        async with ReservedSessions(mongod).session() as reserved:
            await reserved.insert(namespace, [bson.encode({"_id": 2, "a": 2})])
        (told,) = of_session(await drained(history), session)
        assert (told.statement_id, told.write.txn_number) == (INCOMPLETE_HISTORY, 2)
        for entry in await oplog_of(mongod, namespace):
            history.observe(entry)
        (observed,) = map(ExecutedStatement.from_bson, await drained(history))
        assert observed.statement_id == INCOMPLETE_HISTORY

    lone.run(test)


@pytest.mark.parametrize("kept_bytes_max", [64 << 20, 1])
def test_observed_writes(lone: LoneMongod, namespace: Namespace, kept_bytes_max: int) -> None:
    session, other = Session(), Session()

    async def test(mongod: LocalMongod) -> None:
        history = await donor_history(mongod, namespace, {"a": 0}, {"a": 10}, kept_bytes_max=kept_bytes_max)
        await drained(history)
        await reply_to(mongod.pool, namespace.db, session.write(1, insert(1, 2, 3, 12)))
        await reply_to(mongod.pool, namespace.db, session.write(2, insert(4, 5)))
        await reply_to(mongod.pool, namespace.db, other.write(1, insert(6)))
        await mongod.command("admin", {"appendOplogNote": 1, "data": {}, "writeConcern": {"w": "majority"}})
        for entry in await oplog_of(mongod, namespace):
            history.observe(entry)
        statements = await drained(history)
        latest = [each for each in of_session(statements, session) if each.write.txn_number == 2]
        assert [(each.statement_id, each.image) for each in latest] == [(0, None), (1, None)]
        (alone,) = of_session(statements, other)
        assert bson.decode(alone.image or b"") == {"_id": 6, "a": 6}

    lone.run(test)


def test_batches_are_numbered(lone: LoneMongod, namespace: Namespace) -> None:
    session = Session()

    async def test(mongod: LocalMongod) -> None:
        await reply_to(mongod.pool, namespace.db, session.write(1, insert(1)))
        history = await donor_history(mongod, namespace, {"a": 0}, {"a": 10})
        first = await history.next_batch(0)
        assert of_session(first, session)
        assert await history.next_batch(0) == first
        assert not history.is_drained
        assert await history.next_batch(1) == []
        assert history.is_drained
        with pytest.raises(CommandError) as caught:
            await history.next_batch(3)
        assert caught.value.code_name == "BadValue"

    lone.run(test)
