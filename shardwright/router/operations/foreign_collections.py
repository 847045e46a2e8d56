"""Other collections that a pipeline reads or writes: the shard that runs it must have all of each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from shardwright.router.operations.operation import Operation
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.placement.stale_routing import StaleRoutingError
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES, involved_namespaces_element
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import ReadPreference

OUT_TO_SHARDED: Final = 28769
"""MongoDB's number for an ``$out`` whose target is sharded."""

_LOCAL: Final = "local"
"""The database that every mongod has for itself; it refuses to write there."""


@dataclass(frozen=True, slots=True)
class ForeignCollections:
    """The collections that a pipeline names besides its own.

    Attributes:
        routings: their routing: all are unsharded, and on the shard that runs the pipeline.
        version_elements: the version elements for that shard; empty for a genuine shard.
    """

    routings: tuple[CollectionRouting, ...] = ()
    version_elements: bytes = b""

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Add these routings to a `StaleRoutingError` raised in the block."""
        try:
            yield
        except StaleRoutingError as stale:
            stale.involved = self.routings
            raise


NO_FOREIGN_COLLECTIONS: Final = ForeignCollections()


async def foreign_collections(
    operation: Operation,
    pipeline: Pipeline,
    shard: str,
    preference: ReadPreference,
    *,
    create_databases: bool = False,
) -> ForeignCollections:
    """The other collections that a pipeline names.

    A genuine shard does not know the field for their versions. It routes its reads itself; collections that are written
    are looked up in the catalog first.

    Args:
        operation: the client's operation.
        pipeline: the stages.
        shard: the shard that will run them.
        preference: selects one of its members.
        create_databases: create missing databases of collections that are written, on ``shard``.

    Raises:
        JoinNeededError: ``shard`` does not have all of some collection that is read.
        CommandError: CommandNotSupported, it does not have all of one that is written; 28769, the target of ``$out`` is
            sharded; the shard can't be reached.
    """
    named = pipeline.involved_namespaces(operation.request.db)
    if not named:
        return NO_FOREIGN_COLLECTIONS
    routing_cache = operation.context.routing
    is_checked_by_shard = await operation.context.shards.understands(shard, INVOLVED_NAMESPACES.decode(), preference)
    found: list[CollectionRouting] = []
    for namespace, is_written in named.items():
        db = namespace.partition(".")[0]
        if is_written and create_databases and db != _LOCAL:
            await routing_cache.database(db, create=True, primary=shard)
        routing = await routing_cache.find(namespace)
        if routing is None:
            continue  # there is nothing to read
        # No shard checks that this is still so.
        if is_written and not is_checked_by_shard:
            routing = await routing_cache.latest(routing)
        elif not _is_on(routing, shard):
            routing = await routing_cache.latest_if_readable(routing)
        if not _is_on(routing, shard):
            raise _refusal(routing, shard, is_written=is_written, is_out=is_written and "$out" in pipeline.names)
        found.append(routing)
    if not is_checked_by_shard:
        return ForeignCollections(tuple(found))
    elements = involved_namespaces_element({each.namespace: each.versions_for(shard) for each in found})
    return ForeignCollections(tuple(found), elements)


def _is_on(routing: CollectionRouting, shard: str) -> bool:
    return not routing.is_sharded and routing.primary == shard


def _refusal(routing: CollectionRouting, shard: str, *, is_written: bool, is_out: bool) -> CommandError:
    if routing.is_sharded and is_out:
        return CommandError(OUT_TO_SHARDED, f"{routing.namespace} cannot be sharded")
    where = "it is sharded" if routing.is_sharded else f"it is on {routing.primary}"
    message = (
        f"This aggregation runs on {shard} and names the collection {routing.namespace}, but {where}: a pipeline over "
        "several shards may only filter and transform documents of one collection"
    )
    if is_written:
        return CommandError(ErrorCode.CommandNotSupported, message)
    return JoinNeededError(CommandError(ErrorCode.CommandNotSupported, message), frozenset({routing.namespace}))
