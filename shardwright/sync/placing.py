"""Indexes and sharding at the target: shard keys, zones, and chunks that exist before the copy."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.sync.ends import End, is_transient, repeated
from shardwright.sync.plan import Collection, index_at_target, index_command, value_at
from shardwright.wire import rawbson
from shardwright.wire.logger import get_logger

CHUNKS_PER_SHARD: Final = 4
SAMPLES_PER_CHUNK: Final = 20
ZONE_NOT_FOUND: Final = 241

_NOT_FOR_KEYS: Final = frozenset({"partialFilterExpression", "sparse", "collation"})

_log = get_logger("sync.placing")

Run = Callable[..., Awaitable[None]]
"""Runs a command on a database of the target; further arguments are the codes of harmless errors."""


async def build_indexes(run: Run, namespace: str, indexes: Sequence[Mapping[str, Any]], *, keeps_expiry: bool) -> None:
    """Build all indexes of the source that the target can build at present.

    The source has built them with its present documents. The target's documents are older, or some are newer than
    others, so that a value may occur twice or may not fit. Then a later comparison builds them.
    """
    command = index_command(namespace, indexes, keeps_expiry=keeps_expiry)
    try:
        await run(namespace.partition(".")[0], command)
    except OperationFailure as error:
        if is_transient(error):
            raise
        if len(indexes) > 1:
            for alone in indexes:
                await build_indexes(run, namespace, [alone], keeps_expiry=keeps_expiry)
            return
        _log.warning(
            "The target cannot build an index yet", namespace=namespace, index=str(indexes[0]["name"]), error=str(error)
        )


async def shard(run: Run, collection: Collection) -> None:
    """Shard an existing collection at the target; its zones divide an empty collection into chunks."""
    database, _, name = collection.namespace.partition(".")
    assert collection.key is not None
    await match_zones(run, collection, ())
    await run(database, {"createIndexes": name, "indexes": [_key_index(collection)]})
    command: dict[str, Any] = {"shardCollection": collection.namespace, "key": collection.key}
    if collection.is_unique:
        command["unique"] = True
    if "collation" in collection.options:
        command["collation"] = {"locale": "simple"}
    await run("admin", command)


async def match_key(run: Run, wanted: Collection, theirs: Collection) -> None:
    """Give a collection of the target its shard key."""
    assert wanted.key is not None
    if theirs.key is None:
        await shard(run, wanted)
        return
    old, new = list(theirs.key.items()), list(wanted.key.items())
    index = {"createIndexes": wanted.namespace.partition(".")[2], "indexes": [_key_index(wanted)]}
    await run(wanted.namespace.partition(".")[0], index)
    refines = new[: len(old)] == old
    command = "refineCollectionShardKey" if refines else "reshardCollection"
    await run("admin", {command: wanted.namespace, "key": wanted.key})


async def match_zones(run: Run, wanted: Collection, there: Sequence[Mapping[str, Any]] | None) -> None:
    """Give a collection of the target the zones of the source, if they are carried."""
    if wanted.zones is None:
        return
    new, old = [{encode({"": _parts(each)}): each for each in zones} for zones in (wanted.zones, there or ())]
    for known, each in old.items():
        if known not in new:
            await run("admin", _zone_command(wanted.namespace, each, None))
    for known, each in new.items():
        if known not in old:
            try:
                await run("admin", _zone_command(wanted.namespace, each, each["tag"]))
            except OperationFailure as error:
                if error.code != ZONE_NOT_FOUND:
                    raise
                _log.warning("No shard of the target has this zone", namespace=wanted.namespace, zone=each["tag"])


async def presplit(source: End, target: End, collection: Collection, shards: Sequence[str]) -> None:
    """Split an empty collection of the target by sampled keys of the source, and distribute the chunks.

    A collection with a hashed key or zones already has chunks on several shards.

    Args:
        collection: in its form at the target.
    """
    key = collection.key
    if key is None or len(shards) < 2 or collection.zones or "hashed" in key.values():
        return
    chunks = CHUNKS_PER_SHARD * len(shards)
    pipeline: list[Mapping[str, Any]] = [
        {"$sample": {"size": chunks * SAMPLES_PER_CHUNK}},
        {"$project": {"_id": 1, **dict.fromkeys(key, 1)}},
        {"$sort": dict(key)},
    ]

    async def sampled() -> list[RawBSONDocument]:
        cursor = await source.collection(collection.namespace).aggregate(pipeline, allowDiskUse=True)
        return [key_of(each, key) async for each in cursor]

    for number, middle in enumerate(split_points(await repeated(sampled), chunks), 1):
        to = shards[number % len(shards)]
        try:
            await target.command("admin", {"split": collection.namespace, "middle": middle})
            await target.command("admin", {"moveChunk": collection.namespace, "find": middle, "to": to})
        except PyMongoError as error:
            # The balancer handles the chunks that were not split or moved here.
            _log.info("A chunk was not split or moved", namespace=collection.namespace, to=to, error=str(error))


def key_of(document: RawBSONDocument, key: Mapping[str, Any]) -> RawBSONDocument:
    """Return the values of the shard key of a document, by path; null for missing ones."""
    values = [rawbson.element(path.encode(), *value_at(bytes(document.raw), path)) for path in key]
    return rawbson.raw_document(rawbson.from_elements(b"".join(values)))


def split_points(samples: Sequence[Mapping[str, Any]], chunks: int) -> list[Mapping[str, Any]]:
    """Return the bounds between chunks with about the same number of documents.

    Args:
        chunks: the wanted number; there are fewer if values repeat.
    """
    found: list[Mapping[str, Any]] = []
    for number in range(1, chunks):
        each = samples[number * len(samples) // chunks] if samples else None
        if each is not None and encode(each) not in (encode(samples[0]), *(encode(other) for other in found[-1:])):
            found.append(each)
    return found


def _zone_command(namespace: str, each: Mapping[str, Any], zone: str | None) -> dict[str, Any]:
    return {"updateZoneKeyRange": namespace, "min": each["min"], "max": each["max"], "zone": zone}


def _parts(zone: Mapping[str, Any]) -> list[Any]:
    return [zone["min"], zone["max"], zone["tag"]]


def _key_index(collection: Collection) -> dict[str, Any]:
    """Return the index of the shard key: the source's own, if it has one."""
    assert collection.key is not None
    key = collection.key
    for each in collection.indexes:
        if list(each["key"].items()) == list(key.items()) and not each.keys() & _NOT_FOR_KEYS:
            return index_at_target(each, keeps_expiry=False)
    return {"key": dict(key), "name": "_".join(f"{path}_{kind}" for path, kind in key.items())}
