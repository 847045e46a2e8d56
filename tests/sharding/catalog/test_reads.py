"""The catalog's reads, driven with replies that a config server might give."""

from typing import Any
from uuid import uuid4

import bson
import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.catalog import reads
from shardwright.sharding.catalog.reads import (
    ROUTING_READS_MAX,
    CatalogRead,
    CatalogReads,
    read_database,
    read_routing,
    read_shards,
)
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError

UUID = Binary.from_uuid(uuid4())
EPOCH = ObjectId()


def collection(**changes: Any) -> bytes:  # noqa: ANN401 - fields of a document
    return bson.encode(
        {
            "_id": "db.c",
            "lastmodEpoch": EPOCH,
            "lastmod": bson.DatetimeMS(0),
            "timestamp": Timestamp(100, 1),
            "uuid": UUID,
            "key": {"x": 1},
            "unique": False,
            **changes,
        }
    )


def chunk(low: object, high: object, shard: str, version: tuple[int, int]) -> bytes:
    lastmod = Timestamp(*version)
    document = {
        "_id": ObjectId(),
        "uuid": UUID,
        "min": {"x": low},
        "max": {"x": high},
        "shard": shard,
        "lastmod": lastmod,
    }
    return bson.encode({"chunks": document})


LOW, HIGH = MinKey(), MaxKey()
WHOLE = [collection(), chunk(LOW, 0, "a", (1, 0)), chunk(0, HIGH, "b", (1, 1))]


def answer(steps: CatalogReads[Any], read: CatalogRead, documents: list[bytes]) -> CatalogRead:
    """Answer a read, whose documents arrive in two batches; returns the next read."""
    sink = read.new_sink()
    sink.extend(documents[:2])
    sink.extend(documents[2:])
    return steps.send(sink)


def drive(steps: CatalogReads[Any], *answers: list[bytes]) -> tuple[Any, list[dict[str, Any]]]:
    """The result of a read and the commands it issued, one for each answer."""
    reads = [next(steps)]
    for documents in answers[:-1]:
        reads.append(answer(steps, reads[-1], documents))
    with pytest.raises(StopIteration) as finished:
        answer(steps, reads[-1], answers[-1])
    return finished.value.value, [read.command for read in reads]


def table() -> RoutingTable:
    result, _ = drive(read_routing("db.c"), WHOLE)
    assert isinstance(result, RoutingTable)
    return result


def test_routing_of_an_unsharded_collection_is_none() -> None:
    assert drive(read_routing("db.c"), [])[0] is None
    assert drive(read_routing("db.c", table()), [])[0] is None


def test_routing_is_read_in_one_snapshot() -> None:
    result, [command] = drive(read_routing("db.c"), WHOLE)
    assert command["aggregate"] == "collections"
    assert command["readConcern"] == {"level": "snapshot"}
    assert [(each.shard, each.version) for each in result.chunks()] == [("a", 1 << 32), ("b", 1 << 32 | 1)]


def test_routing_that_did_not_change_is_the_same_object() -> None:
    known = table()
    assert drive(read_routing("db.c", known), [WHOLE[0], WHOLE[2]])[0] is known


def test_routing_is_refreshed_from_the_changed_chunks() -> None:
    known = table()
    changed = [collection(), chunk(LOW, 0, "b", (2, 0)), chunk(0, HIGH, "b", (1, 1))]
    result, [command] = drive(read_routing("db.c", known), changed)
    assert result.shards == {"b"}
    first_union = command["pipeline"][1]["$unionWith"]["pipeline"]
    assert first_union[0] == {"$match": {"_id": "db.c", "timestamp": Timestamp(100, 1)}}
    assert first_union[1]["$lookup"]["pipeline"][0]["$match"]["lastmod"] == {"$gte": Timestamp(1, 1)}


def test_routing_takes_changed_attributes_of_the_collection() -> None:
    result, _ = drive(read_routing("db.c", table()), [collection(allowMigrations=False), WHOLE[2]])
    assert result.collection.allow_migrations is False


def test_routing_of_another_incarnation_is_built_again() -> None:
    known = table()
    reborn = [collection(timestamp=Timestamp(200, 1)), chunk(LOW, HIGH, "c", (1, 0))]
    result, _ = drive(read_routing("db.c", known), reborn)
    assert result.shards == {"c"}


def test_changes_that_do_not_fit_are_read_again_in_full() -> None:
    known = table()
    misfit = [collection(), chunk(3, 5, "b", (2, 0)), WHOLE[2]]
    result, commands = drive(read_routing("db.c", known), misfit, WHOLE)
    assert result.chunk_count == 2
    assert len(commands[1]["pipeline"]) == 2


def test_too_many_changes_are_read_again_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laying millions of them over the known table at once would block the daemon for many seconds."""
    monkeypatch.setattr(reads, "CHANGED_CHUNKS_MAX", 1)
    split = [chunk(LOW, 0, "a", (1, 2)), chunk(0, HIGH, "b", (1, 3))]
    result, commands = drive(read_routing("db.c", table()), [collection(), *split], [collection(), *split])
    assert [each.version for each in result.chunks()] == [1 << 32 | 2, 1 << 32 | 3]
    assert len(commands[1]["pipeline"]) == 2


def test_a_refresh_without_even_the_known_chunk_is_read_again() -> None:
    result, _ = drive(read_routing("db.c", table()), [collection()], WHOLE)
    assert result.chunk_count == 2


def test_chunks_that_never_fit_are_an_error_in_the_end() -> None:
    steps = read_routing("db.c")
    read = next(steps)
    for _ in range(ROUTING_READS_MAX - 1):
        read = answer(steps, read, WHOLE[:2])
    with pytest.raises(CommandError) as failure:
        answer(steps, read, WHOLE[:2])
    assert failure.value.code == ErrorCode.ConflictingOperationInProgress


OLDER = [collection(), chunk(LOW, 0, "a", (1, 0)), chunk(0, HIGH, "b", (0, 1))]
EARLIER_INCARNATION = [collection(timestamp=Timestamp(99, 1)), *WHOLE[1:]]


@pytest.mark.parametrize("older", [OLDER, EARLIER_INCARNATION])
def test_a_config_server_that_has_not_come_so_far_is_asked_again(older: list[bytes]) -> None:
    result, _ = drive(read_routing("db.c", table()), [collection()], older, WHOLE)
    assert result.collection_version == table().collection_version


@pytest.mark.parametrize("older", [OLDER, EARLIER_INCARNATION])
def test_what_is_known_never_goes_back(older: list[bytes]) -> None:
    steps = read_routing("db.c", table())
    read = answer(steps, next(steps), [collection()])
    for _ in range(ROUTING_READS_MAX - 2):
        read = answer(steps, read, older)
    with pytest.raises(CommandError) as caught:
        answer(steps, read, older)
    assert caught.value.code == ErrorCode.ConflictingOperationInProgress


def test_something_that_is_no_chunk_is_a_broken_protocol() -> None:
    steps = read_routing("db.c")
    with pytest.raises(RemoteProtocolError):
        answer(steps, next(steps), [collection(), bson.encode({"other": {}})])


def test_read_database() -> None:
    version = {"uuid": UUID, "timestamp": Timestamp(1, 2), "lastMod": 3}
    document = bson.encode({"_id": "db", "primary": "a", "partitioned": False, "version": version})
    entry, [command] = drive(read_database("db"), [document])
    assert (entry.name, entry.primary, entry.version.last_mod) == ("db", "a", 3)
    assert command["filter"] == {"_id": "db"}
    assert command["readConcern"] == {"level": "majority"}
    assert drive(read_database("db"), [])[0] is None


def test_read_shards() -> None:
    document = bson.encode({"_id": "a", "host": "rs/one:1,two:2", "state": 1, "tags": ["z"], "draining": True})
    [entry], [command] = drive(read_shards(), [document])
    hosts = entry.connection_string
    assert (entry.id, hosts.set_name, hosts.addresses) == ("a", "rs", ("one:1", "two:2"))
    assert (entry.tags, entry.is_draining, entry.topology_time) == (("z",), True, None)
    assert command["sort"] == {"_id": 1}
