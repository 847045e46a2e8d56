"""Effects of catalog changes on chunks: the documents of ``config.chunks`` to write and to delete.

Pure functions from the current chunks to a `ChunkChanges`. configd reads the chunks, checks that nothing has changed
since, and writes in a transaction. Versions rise as observed on a config server of MongoDB 6.0.5. The same holds for
changes that affect only the version of one chunk. A ``collection_version`` is the one before the change.

**Refining a shard key.** Fields are added at its end, and every bound is extended so that no document moves. A bound
``{a: 5}`` becomes ``{a: 5, b: MinKey}``, which lies below all documents with ``a: 5``. Only the very end of the key
space is extended with MaxKey, so that it remains the end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkPlacement, ChunkRange
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX

_OTHER_BYTES: Final = 64 * 1024
"""Room for the other fields of an oplog entry, and for the fields by which a key may be refined."""


def check_bounds_fit(low: bytes, high: bytes) -> None:
    """Raise BSONObjectTooLarge for bounds of a new chunk that shards could not persist.

    No DDL operation on the collection could then finish. A shard keeps its chunks by their lower bounds
    (``config.cache.chunks.<namespace>``), and mongod's oplog entry of an insert contains the document and once more its
    ``_id``.
    """
    size, size_max = 2 * len(low) + len(high), BSON_OBJECT_BYTES_MAX - _OTHER_BYTES
    if size > size_max:
        raise CommandError(
            ErrorCode.BSONObjectTooLarge,
            f"The bounds of a chunk are too large: the upper one, and twice the lower one, have {size} bytes, but"
            f" at most {size_max} are allowed",
        )


CHUNK_NOT_FOUND = 40165
"""MongoDB's number for a commit of a migration whose range lies in no chunk."""
CHUNK_ON_OTHER_SHARD = 4914702
"""MongoDB's number for a commit of a migration whose range is on neither of the two shards."""


@dataclass(frozen=True, slots=True)
class ChunkChanges:
    """Chunks to write (replace or insert, by ``_id``) and to delete; empty if nothing has to change."""

    written: tuple[Chunk, ...] = ()
    deleted: tuple[Chunk, ...] = ()

    def collection_version(self, before: ChunkVersion) -> ChunkVersion:
        """Return the collection version after these changes."""
        return max((chunk.version for chunk in self.written), default=before, key=lambda version: version.packed)


def split(
    chunk: Chunk,
    split_points: Sequence[bytes],
    *,
    pattern: ShardKeyPattern,
    collection_version: ChunkVersion,
    new_id: Callable[[], ObjectId],
) -> ChunkChanges:
    """Cut a chunk at the given keys. The first part keeps the document's ``_id``; all parts keep its history.

    Raises:
        CommandError: InvalidOptions, the keys are not inside the chunk in strictly rising order; BSONObjectTooLarge, a
            part has too large bounds.
    """
    check_split_points(chunk.range(pattern), split_points, pattern)
    parts = []
    for number, (low, high) in enumerate(pairwise([chunk.min, *split_points, chunk.max])):
        check_bounds_fit(low, high)
        part = replace(chunk, min=low, max=high, version=collection_version.with_minor_raised(number + 1), jumbo=False)
        parts.append(part if number == 0 else replace(part, id=new_id()))
    return ChunkChanges(tuple(parts))


def check_split_points(whole: ChunkRange, split_points: Sequence[bytes], pattern: ShardKeyPattern) -> None:
    """Raise InvalidOptions for keys at which a chunk cannot be split."""
    if not split_points:
        raise CommandError(ErrorCode.InvalidOptions, "need to provide the split points")
    previous, previous_key = whole.min, whole.min_key
    for point in split_points:
        key, text = pattern.key_bytes(point), document_text(point)
        if key == whole.max_key:
            raise _split_on_bound(point)
        if not whole.contains_key(key):
            raise CommandError(ErrorCode.InvalidOptions, f"Split key {text} not contained within chunk {whole}")
        if key < previous_key:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "Split keys must be specified in strictly increasing order."
                f" Key {text} was specified after {document_text(previous)}.",
            )
        if key == previous_key:
            raise _split_on_bound(point)
        previous, previous_key = point, key


def merge(
    chunks: Sequence[Chunk],
    merged: ChunkRange,
    *,
    shard: str,
    pattern: ShardKeyPattern,
    collection_version: ChunkVersion,
) -> ChunkChanges:
    """Merge all chunks of a range into one. It keeps the first one's ``_id``.

    Its history begins when the last of them came to the shard: since then the shard has owned the whole range.

    Raises:
        CommandError: IllegalOperation, chunks of the shard do not fill the range exactly; BSONObjectTooLarge, the
            bounds are too large for one chunk.
    """
    ranges = [chunk.range(pattern) for chunk in chunks]
    fills = (
        bool(chunks)
        and all(chunk.shard == shard for chunk in chunks)
        and ranges[0].min_key == merged.min_key
        and ranges[-1].max_key == merged.max_key
        and all(left.max_key == right.min_key for left, right in pairwise(ranges))
    )
    if not fills:
        raise CommandError(
            ErrorCode.IllegalOperation,
            f"could not merge chunks, shard {shard} does not contain a sequence of chunks that exactly fills the range"
            f" {merged}",
        )
    if len(chunks) == 1:
        return ChunkChanges()
    check_bounds_fit(chunks[0].min, chunks[-1].max)
    whole = replace(
        chunks[0],
        max=chunks[-1].max,
        version=collection_version.with_minor_raised(),
        history=max(chunk.history[:1] for chunk in chunks),
        jumbo=False,
    )
    return ChunkChanges((whole,), tuple(chunks[1:]))


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration to be committed.

    Args:
        version: the donor's version of the chunk that contains the range.
        history_from: the oldest time of snapshot reads; owners that had given the chunk away by then are dropped from
            its history.
    """

    moved: ChunkRange
    version: ChunkVersion
    from_shard: str
    to_shard: str
    valid_after: Timestamp
    history_from: Timestamp


def move(
    migration: Migration,
    current: Chunk | None,
    *,
    control: Chunk | None,
    pattern: ShardKeyPattern,
    collection_version: ChunkVersion,
    new_id: Callable[[], ObjectId],
) -> ChunkChanges:
    """Give a range to another shard, under a new major version.

    The parts of the chunk on either side of the range stay with the donor as chunks of their own. The version of the
    control chunk is raised too, so that the donor's version changes even when its highest chunk moved away.

    Args:
        current: the chunk in which the whole range lies.
        control: another chunk of the donor, if it has one.

    Raises:
        CommandError: 40165 without ``current``; 4914702 if it is on neither shard; ConflictingOperationInProgress if it
            is newer than the donor's version; IncompatibleShardingMetadata if its history reaches into the future;
            BSONObjectTooLarge if a part of it has too large bounds.
    """
    moved = migration.moved
    if current is None or not (whole := current.range(pattern)).contains(moved):
        raise CommandError(
            CHUNK_NOT_FOUND,
            f"Could not find a chunk including bounds {moved}."
            " Cannot execute the migration commit with invalid chunks.",
        )
    if current.shard == migration.to_shard:
        return ChunkChanges()
    if current.shard != migration.from_shard:
        raise CommandError(
            CHUNK_ON_OTHER_SHARD,
            f"Migrated chunk {moved} not owned by donor {migration.from_shard} neither by recipient"
            f" {migration.to_shard}",
        )
    if migration.version.is_older_than(current.version):
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            f"Rejecting migration request because the version of the requested chunk {moved} ({migration.version}) is"
            f" older than the version of the current chunk {whole} ({current.version}) on shard {current.shard}",
        )
    arrived = replace(
        current,
        min=moved.min,
        max=moved.max,
        shard=migration.to_shard,
        version=collection_version.with_major_raised(),
        history=_history_after(migration, current),
        jumbo=False,
    )
    staying = []
    if whole.min_key < moved.min_key:
        staying.append(replace(current, id=new_id(), max=moved.min, jumbo=False))
    if moved.max_key < whole.max_key:
        staying.append(replace(current, id=new_id(), min=moved.max, jumbo=False))
    if staying:
        for part in (arrived, *staying):
            check_bounds_fit(part.min, part.max)
    if control is not None:
        staying.append(control)
    raised = [chunk.with_version(arrived.version.with_minor_raised(n)) for n, chunk in enumerate(staying, start=1)]
    return ChunkChanges((arrived, *raised))


def _history_after(migration: Migration, current: Chunk) -> tuple[ChunkHistory, ...]:
    history = list(current.history)
    oldest = pack_timestamp(migration.history_from)
    # An entry counts until the next newer one begins, so the entry that was valid at ``oldest`` stays.
    while len(history) > 1 and pack_timestamp(history[-2].valid_after) <= oldest:
        history.pop()
    if history and pack_timestamp(history[0].valid_after) >= pack_timestamp(migration.valid_after):
        raise CommandError(
            ErrorCode.IncompatibleShardingMetadata,
            f"The chunk history for {migration.moved} is corrupted. The last validAfter {history[0].valid_after} is"
            f" greater or equal to the new validAfter {migration.valid_after}",
        )
    return (ChunkHistory(migration.valid_after, migration.to_shard), *history)


def _split_on_bound(point: bytes) -> CommandError:
    text = document_text(point)
    return CommandError(ErrorCode.InvalidOptions, f"Split on lower bound of chunk [{text}, {text}] is not allowed")


JUMBO_CHUNK_NOT_FOUND = 51262
"""MongoDB's number for ``clearJumboFlag`` of a chunk that does not exist."""


def bump_minor(highest: Chunk) -> ChunkChanges:
    """Make shards and routers refresh after an attribute of the collection changed.

    ``setAllowMigrations`` and ``configureCollectionBalancing`` do this. The version of the chunk ``highest`` is the
    collection's.
    """
    return ChunkChanges((highest.with_version(highest.version.with_minor_raised()),))


def bump_each_shard(firsts: Sequence[Chunk], collection_version: ChunkVersion) -> ChunkChanges:
    """Make every shard refuse the routers' current versions, because they would target wrongly by them.

    ``firsts`` has one chunk of each shard that owns any, in the order of the shards' names.
    """
    first = collection_version.with_major_raised()
    versions = (first.with_minor_raised(number) for number in range(len(firsts)))
    return ChunkChanges(tuple(chunk.with_version(version) for chunk, version in zip(firsts, versions, strict=True)))


def ensure_version_is_greater_than(
    chunk: Chunk | None, version: ChunkVersion, *, collection_version: ChunkVersion
) -> ChunkChanges:
    """Prevent a migration that a donor tried to commit from committing any more.

    ``chunk`` has exactly the range of the migration, if there still is one; ``version`` is its version when it began.
    """
    if chunk is None or not chunk.version.is_older_or_equal(version):
        return ChunkChanges()
    return ChunkChanges((chunk.with_version(collection_version.with_major_raised()),))


def clear_jumbo(
    chunk: Chunk | None, wanted: ChunkRange, *, namespace: Namespace, collection_version: ChunkVersion
) -> ChunkChanges:
    """Clear the jumbo flag of a chunk, so that it may be moved again; raise 51262 if there is no such chunk."""
    if chunk is None:
        raise CommandError(JUMBO_CHUNK_NOT_FOUND, f"Unable to locate chunk {wanted} from ns: {namespace}")
    if not chunk.jumbo:
        return ChunkChanges()
    return ChunkChanges((replace(chunk, jumbo=None, version=collection_version.with_major_raised()),))


def is_extended_by(old: ShardKeyPattern, new: ShardKeyPattern) -> bool:
    """Whether the fields of ``old`` are the first of ``new``, hashed where they are hashed."""
    return new.fields[: len(old.fields)] == old.fields


def extend_bound(bound: bytes, pattern: ShardKeyPattern) -> bytes:
    """Extend a bound of a chunk, zone or range deletion from a shorter shard key to a key that extends it.

    A bound with all fields is returned unchanged. Raises BadValue if its fields are not the first of the pattern.
    """
    is_end = all(kind == rawbson.MAX_KEY for _, (kind, *_) in rawbson.spans(bound))
    return pattern.extend_range_bound(bound, upper_inclusive=is_end)


def refined_chunk(chunk: Chunk, pattern: ShardKeyPattern) -> Chunk:
    """Extend the bounds of a chunk from a shorter key to ``pattern``, if necessary."""
    return replace(chunk, min=extend_bound(chunk.min, pattern), max=extend_bound(chunk.max, pattern))


def refined_placement(chunk: ChunkPlacement, pattern: ShardKeyPattern) -> ChunkPlacement:
    """Extend the bounds of a placement, as `refined_chunk`."""
    return chunk._replace(min=extend_bound(chunk.min, pattern), max=extend_bound(chunk.max, pattern))


def chunks_to_refine(uuid: UUID, pattern: ShardKeyPattern) -> dict[str, Any]:
    """Build the query for the chunks of a collection whose bounds lack fields of the key."""
    return {"uuid": Binary.from_uuid(uuid), **bounds_to_refine(pattern)}


def bounds_to_refine(pattern: ShardKeyPattern) -> dict[str, Any]:
    """Build the condition that the bounds of a chunk or a zone lack fields of the key."""
    last = {"$getField": {"field": {"$literal": pattern.fields[-1].name.decode()}, "input": "$min"}}
    return {"$expr": {"$eq": [{"$type": last}, "missing"]}}


def chunk_update(old: ShardKeyPattern, new: ShardKeyPattern) -> list[dict[str, Any]]:
    """Build the pipeline that extends one chunk document, as `zone_update`.

    The chunks keep their versions, but lose the jumbo flag, because the added fields may make them splittable.
    """
    return [*zone_update(old, new), {"$unset": "jumbo"}]


def zone_update(old: ShardKeyPattern, new: ShardKeyPattern) -> list[dict[str, Any]]:
    """Build the pipeline that extends the bounds of one document from ``old`` to ``new``, as `extend_bound` does."""
    added = [field.name.decode() for field in new.fields[len(old.fields) :]]
    end = {field.name.decode(): MaxKey() for field in old.fields}
    whole_end = end | {name: MaxKey() for name in added}
    is_end = {"$eq": ["$max", {"$literal": end}]}
    return [
        {
            "$set": {
                "min": _with_least("$min", added),
                "max": {"$cond": [is_end, {"$literal": whole_end}, _with_least("$max", added)]},
            }
        }
    ]


def _with_least(bound: str, added: Iterable[str]) -> object:
    extended: object = bound
    for name in added:
        extended = {"$setField": {"field": {"$literal": name}, "input": extended, "value": MinKey()}}
    return extended
