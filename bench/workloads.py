"""The workloads: their requests, and the checks of their replies.

The data is the same for every target: `DOCUMENTS` documents, sharded (where there are shards) by range on ``key``, with
the upper half of the keys on the second shard. Operations on one document use only keys of the second shard, so that
the first shard, which runs the genuine router code, owns none of them. Writes have ``w: 1``, because the path to the
mongod is measured, not its journal.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import bson
from bson.binary import Binary, UuidRepresentation

from bench.plan import CLUSTER_TIME, SESSION_ID, TXN_NUMBER, UNIQUE_ID, Frame, Plan, get_more, request

DATABASE: Final = "bench"
DOCUMENTS: Final = 100_000
SPLIT_AT: Final = DOCUMENTS // 2
SHARD_KEY: Final = {"key": 1}
INDEXES: Final = ("key", "value")
READ_COLLECTION: Final = "documents"
WRITE_COLLECTION: Final = "inserts"
STREAM_COLLECTION: Final = "watched"
GROUP_COLLECTION: Final = "grouped"
LOCAL_COLLECTION: Final = "local"
SHARDED_COLLECTIONS: Final = (READ_COLLECTION, WRITE_COLLECTION, STREAM_COLLECTION, GROUP_COLLECTION)

BULK_SIZE: Final = 1_000
SORTED_LIMIT: Final = 100
GROUPED: Final = 1_000_000
GROUPED_QUICK: Final = 20_000
GROUPS: Final = 1_000
JOINED: Final = 10_000

_FRAMES: Final = 2_000
_BULK_FRAMES: Final = 8
_SEED: Final = 20_250_101
_SESSION: Final = {"id": Binary.from_uuid(UUID(int=_SEED), UuidRepresentation.STANDARD)}
_ONE: Final = {"w": 1}
_MAX_TIME_MS: Final = 60_000


@dataclass(frozen=True)
class Dialect:
    """The names of a target's commands.

    Attributes:
        prefix: the genuine router code in a shard server uses the usual names with the prefix ``cluster``.
        numbers_writes: whether writes may have a ``txnNumber``. The genuine router code in a shard server aborts the
            server on one (invariant in ``transaction_router.cpp``), because it expects a mongos's session there.
    """

    prefix: str = ""
    numbers_writes: bool = True

    def __call__(self, command: str) -> str:
        """Return the target's name of a command."""
        return self.prefix + command[0].upper() + command[1:] if self.prefix else command


MONGODB: Final = Dialect()
CLUSTER_COMMANDS: Final = Dialect("cluster", numbers_writes=False)


@dataclass(frozen=True)
class Workload:
    """A workload to measure.

    Attributes:
        name: its name on the command line and in the results.
        is_right: returns whether a decoded reply is correct.
        is_long: whether an operation takes so long that there is no warm-up and a run has only a few.
        data: a collection that only this workload reads, and its documents. A quick run has fewer.
        is_in_every_dialect: whether the genuine router code in a shard server has the command, too.
    """

    name: str
    title: str
    plan: Callable[[Dialect, random.Random], Plan]
    is_right: Callable[[dict[str, Any]], bool]
    is_long: bool = False
    data: tuple[str, Callable[[bool], Iterable[dict[str, Any]]]] | None = None
    is_in_every_dialect: bool = True

    def requests(self, dialect: Dialect) -> Plan:
        """Return its requests for a target, the same every time."""
        return self.plan(dialect, random.Random(_SEED))


def document(key: int, random_numbers: random.Random) -> dict[str, Any]:
    """Return a document of about 250 bytes, whose ``_id`` the load generator sets."""
    return {
        "_id": UNIQUE_ID,
        "key": key,
        "value": random_numbers.randrange(1 << 30),
        "counter": 0,
        "name": f"document {key:012d}",
        "tags": ["red", "green", "blue"],
        "text": "x" * 120,
    }


def _common(*, is_write: bool = False) -> dict[str, Any]:
    return {"lsid": _SESSION, **({"writeConcern": _ONE} if is_write else {}), "$db": DATABASE}


def _drivers_fields(dialect: Dialect, *, is_write: bool = False, has_deadline: bool = False) -> dict[str, Any]:
    """Return the fields that a driver adds to a command, in its order.

    Args:
        is_write: a retryable write, otherwise a read with a read preference.
        has_deadline: the application has set an API version and a time limit.
    """
    return {
        **({"writeConcern": _ONE} if is_write else {}),
        **({"maxTimeMS": _MAX_TIME_MS, "apiVersion": "1"} if has_deadline else {}),
        "$db": DATABASE,
        "lsid": {"id": Binary.from_uuid(SESSION_ID, UuidRepresentation.STANDARD)},
        **({"txnNumber": TXN_NUMBER} if is_write and dialect.numbers_writes else {}),
        "$clusterTime": CLUSTER_TIME,
        **({} if is_write else {"$readPreference": {"mode": "primaryPreferred"}}),
    }


def _repeated(count: int, make: Callable[[], Frame]) -> tuple[Frame, ...]:
    return tuple(make() for _ in range(count))


def _upper_key(random_numbers: random.Random) -> int:
    return random_numbers.randrange(SPLIT_AT, DOCUMENTS)


def point_find(collection: str = READ_COLLECTION) -> Callable[[Dialect, random.Random], Plan]:
    """Build the requests that find one document of a collection by its shard key."""

    def plan(dialect: Dialect, numbers: random.Random) -> Plan:
        def make() -> Frame:
            body = {dialect("find"): collection, "filter": {"key": _upper_key(numbers)}, "limit": 1}
            return request({**body, "singleBatch": True, **_common()})

        return Plan(_repeated(_FRAMES, make))

    return plan


def _drivers_find(dialect: Dialect, numbers: random.Random, *, has_deadline: bool) -> Plan:
    def make() -> Frame:
        body = {dialect("find"): READ_COLLECTION, "filter": {"key": _upper_key(numbers)}, "limit": 1}
        return request({**body, "singleBatch": True, **_drivers_fields(dialect, has_deadline=has_deadline)})

    return Plan(_repeated(_FRAMES, make))


def _insert_command(
    dialect: Dialect, documents: list[dict[str, Any]], common: dict[str, Any], *, ordered: bool = True
) -> Frame:
    return request({dialect("insert"): WRITE_COLLECTION, "ordered": ordered, **common}, {"documents": documents})


def _insert(count: int, frames: int) -> Callable[[Dialect, random.Random], Plan]:
    def plan(dialect: Dialect, numbers: random.Random) -> Plan:
        lowest = SPLIT_AT if count == 1 else 0

        def make() -> Frame:
            documents = [document(numbers.randrange(lowest, DOCUMENTS), numbers) for _ in range(count)]
            return _insert_command(dialect, documents, _common(is_write=True), ordered=count == 1)

        return Plan(_repeated(frames, make))

    return plan


def _drivers_insert(dialect: Dialect, numbers: random.Random) -> Plan:
    def make() -> Frame:
        documents = [document(_upper_key(numbers), numbers)]
        return _insert_command(dialect, documents, _drivers_fields(dialect, is_write=True))

    return Plan(_repeated(_FRAMES, make))


def _update(common: Callable[[Dialect], dict[str, Any]]) -> Callable[[Dialect, random.Random], Plan]:
    def plan(dialect: Dialect, numbers: random.Random) -> Plan:
        def make() -> Frame:
            statement = {"q": {"key": _upper_key(numbers)}, "u": {"$inc": {"counter": 1}}}
            return request(
                {dialect("update"): READ_COLLECTION, "ordered": True, **common(dialect)}, {"updates": [statement]}
            )

        return Plan(_repeated(_FRAMES, make))

    return plan


def _drivers_find_and_modify(dialect: Dialect, numbers: random.Random) -> Plan:
    def make() -> Frame:
        body = {dialect("findAndModify"): READ_COLLECTION, "query": {"key": _upper_key(numbers)}}
        return request({**body, "update": {"$inc": {"counter": 1}}, **_drivers_fields(dialect, is_write=True)})

    return Plan(_repeated(_FRAMES, make))


def _drivers_delete(dialect: Dialect, numbers: random.Random) -> Plan:
    """Build inserts, each followed by the delete of its document, so that there is always one to delete."""
    frames = []
    for key in numbers.sample(range(SPLIT_AT, DOCUMENTS), _FRAMES // 2):
        frames.append(_insert_command(dialect, [document(key, numbers)], _drivers_fields(dialect, is_write=True)))
        body = {dialect("delete"): WRITE_COLLECTION, "ordered": True, **_drivers_fields(dialect, is_write=True)}
        frames.append(request(body, {"deletes": [{"q": {"key": key}, "limit": 1}]}))
    return Plan(tuple(frames))


def _sorted_find(dialect: Dialect, numbers: random.Random) -> Plan:
    def make() -> Frame:
        body = {
            dialect("find"): READ_COLLECTION,
            "filter": {"value": {"$gte": numbers.randrange(1 << 29)}},
            "sort": {"value": 1},
            "limit": SORTED_LIMIT,
        }
        return request({**body, **_common()})

    return Plan(_repeated(_FRAMES, make))


def _scan(dialect: Dialect, numbers: random.Random) -> Plan:
    frame = request({dialect("find"): READ_COLLECTION, "filter": {}, **_common()})
    return Plan((frame,), get_more(dialect("getMore"), READ_COLLECTION, _common()))


def _sorted_scan(dialect: Dialect, numbers: random.Random) -> Plan:
    frame = request({dialect("find"): READ_COLLECTION, "filter": {}, "sort": {"value": 1}, **_common()})
    return Plan((frame,), get_more(dialect("getMore"), READ_COLLECTION, _common()))


def _group(dialect: Dialect, numbers: random.Random) -> Plan:
    stage = {"$group": {"_id": "$group", "count": {"$sum": 1}, "total": {"$sum": "$amount"}}}
    return _aggregate(dialect, GROUP_COLLECTION, stage)


def _lookup(dialect: Dialect, numbers: random.Random) -> Plan:
    stage = {"$lookup": {"from": READ_COLLECTION, "localField": "key", "foreignField": "key", "as": "joined"}}
    return _aggregate(dialect, LOCAL_COLLECTION, stage)


def _aggregate(dialect: Dialect, collection: str, stage: dict[str, Any]) -> Plan:
    frame = request({dialect("aggregate"): collection, "pipeline": [stage], "cursor": {}, **_common()})
    return Plan((frame,), get_more(dialect("getMore"), collection, _common()))


def _documents_to_group(is_quick: bool) -> Iterable[dict[str, Any]]:
    numbers = random.Random(_SEED)
    for number in range(GROUPED_QUICK if is_quick else GROUPED):
        yield {"key": number % DOCUMENTS, "group": numbers.randrange(GROUPS), "amount": numbers.randrange(1000)}


def _documents_to_join(_is_quick: bool) -> Iterable[dict[str, Any]]:
    return ({"key": number * (DOCUMENTS // JOINED), "number": number} for number in range(JOINED))


def _batch_has(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda reply: len(reply["cursor"]["firstBatch"]) == count


def _n_is(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda reply: reply["n"] == count and "writeErrors" not in reply


def _is_sorted(reply: dict[str, Any]) -> bool:
    values = [each["value"] for each in reply["cursor"]["firstBatch"]]
    return len(values) == SORTED_LIMIT and values == sorted(values) and set(reply["cursor"]["firstBatch"][0]) == _FIELDS


def _begins_sorted(reply: dict[str, Any]) -> bool:
    values = [each["value"] for each in reply["cursor"]["firstBatch"]]
    return reply["cursor"]["id"] != 0 and values == sorted(values)


def _is_joined(reply: dict[str, Any]) -> bool:
    return all(each["joined"][0]["key"] == each["key"] for each in reply["cursor"]["firstBatch"])


_FIELDS: Final = frozenset(document(0, random.Random(0)))

POINT_FIND: Final = Workload("find", "point find by shard key", point_find(), _batch_has(1))

WORKLOADS: Final[Sequence[Workload]] = (
    POINT_FIND,
    Workload("insert", "insert one", _insert(1, _FRAMES), _n_is(1)),
    Workload("bulk", f"bulk insert of {BULK_SIZE:,}", _insert(BULK_SIZE, _BULK_FRAMES), _n_is(BULK_SIZE)),
    Workload("update", "update by shard key", _update(lambda _: _common(is_write=True)), _n_is(1)),
    Workload(
        "drivers-find", "point find as drivers send it", partial(_drivers_find, has_deadline=False), _batch_has(1)
    ),
    Workload(
        "drivers-find-limits",
        "point find as drivers send it, with maxTimeMS and apiVersion",
        partial(_drivers_find, has_deadline=True),
        _batch_has(1),
    ),
    Workload("drivers-insert", "insert one as drivers send it", _drivers_insert, _n_is(1)),
    Workload(
        "drivers-update",
        "update by shard key as drivers send it",
        _update(partial(_drivers_fields, is_write=True)),
        _n_is(1),
    ),
    Workload(
        "drivers-findandmodify",
        "findAndModify by shard key as drivers send it",
        _drivers_find_and_modify,
        lambda reply: reply["lastErrorObject"]["n"] == 1,
        is_in_every_dialect=False,
    ),
    Workload("drivers-delete", "inserts and deletes by shard key, as drivers send them", _drivers_delete, _n_is(1)),
    Workload("sorted", f"sorted find on all shards, limit {SORTED_LIMIT}", _sorted_find, _is_sorted),
    Workload("merge", f"sorted find of {DOCUMENTS:,}, all of them", _sorted_scan, _begins_sorted, is_long=True),
    Workload(
        "group",
        f"$group of {GROUPED:,} into {GROUPS:,}",
        _group,
        lambda reply: all(each["count"] > 0 for each in reply["cursor"]["firstBatch"]),
        is_long=True,
        data=(GROUP_COLLECTION, _documents_to_group),
    ),
    Workload(
        "lookup",
        f"$lookup of {JOINED:,} in a sharded collection",
        _lookup,
        _is_joined,
        is_long=True,
        data=(LOCAL_COLLECTION, _documents_to_join),
    ),
    Workload("scan", f"full scan of {DOCUMENTS:,}", _scan, lambda reply: reply["cursor"]["id"] != 0, is_long=True),
)


def stored_documents(random_numbers: random.Random) -> list[dict[str, Any]]:
    """Return the documents loaded before the measurements."""
    return [{**document(key, random_numbers), "_id": bson.ObjectId()} for key in range(DOCUMENTS)]
