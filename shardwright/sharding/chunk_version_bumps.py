"""Catalog changes that show only in the version of one chunk.

As in `sharding.chunk_changes`, functions return what is to be written; the versions are those of MongoDB 6.0.5.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwright.sharding.chunk_changes import ChunkChanges
from shardwright.sharding.chunks import Chunk, ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.errors import CommandError

JUMBO_CHUNK_NOT_FOUND = 51262
"""MongoDB's number for ``clearJumboFlag`` of a chunk that does not exist."""


def bump_minor(highest: Chunk) -> ChunkChanges:
    """Make shards and routers notice that an attribute of the collection changed.

    ``setAllowMigrations`` and ``configureCollectionBalancing`` do this.

    Args:
        highest: the chunk of the highest version, whose version is the collection's.
    """
    return ChunkChanges((highest.with_version(highest.version.with_minor_raised()),))


def bump_each_shard(firsts: Sequence[Chunk], collection_version: ChunkVersion) -> ChunkChanges:
    """Make every shard refuse the versions that routers have, as they would target wrongly by them.

    Args:
        firsts: one chunk of each shard that owns any, in the order of the shards' names.
        collection_version: before the change.
    """
    first = collection_version.with_major_raised()
    versions = (first.with_minor_raised(number) for number in range(len(firsts)))
    return ChunkChanges(tuple(chunk.with_version(version) for chunk, version in zip(firsts, versions, strict=True)))


def ensure_version_is_greater_than(
    chunk: Chunk | None, version: ChunkVersion, *, collection_version: ChunkVersion
) -> ChunkChanges:
    """Make sure that a migration which a donor tried to commit at ``version`` can no longer be committed.

    Args:
        chunk: the chunk of exactly the range of the migration; None if there no longer is one.
        version: the chunk's version when its migration began.
        collection_version: before the change.
    """
    if chunk is None or not chunk.version.is_older_or_equal(version):
        return ChunkChanges()
    return ChunkChanges((chunk.with_version(collection_version.with_major_raised()),))


def clear_jumbo(
    chunk: Chunk | None, wanted: ChunkRange, *, namespace: Namespace, collection_version: ChunkVersion
) -> ChunkChanges:
    """Let a chunk that was too large to move be moved again.

    Raises:
        CommandError: 51262, there is no such chunk.
    """
    if chunk is None:
        raise CommandError(JUMBO_CHUNK_NOT_FOUND, f"Unable to locate chunk {wanted} from ns: {namespace}")
    if not chunk.jumbo:
        return ChunkChanges()
    return ChunkChanges((replace(chunk, jumbo=None, version=collection_version.with_major_raised()),))
