"""Other collections that a pipeline reads or writes: the one shard that runs it must have them whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from router.operation import Operation
from router.reads.pipeline import Pipeline
from router.routing_cache import CollectionRouting
from router.shard_reply import StaleRoutingError
from sharding.involved_namespaces import INVOLVED_NAMESPACES, involved_namespaces_element
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.read_preference import ReadPreference

OUT_TO_SHARDED: Final = 28769
"""MongoDB's number for an ``$out`` whose target is sharded."""


@dataclass(frozen=True, slots=True)
class ForeignCollections:
    """What a pipeline names besides its own collection.

    Attributes:
        shard: the shard that is to run it.
        routings: how they are routed: all unsharded, and on that shard.
    """

    shard: str
    routings: tuple[CollectionRouting, ...]

    async def version_elements(self, operation: Operation, preference: ReadPreference) -> bytes:
        """The elements that tell the shard the versions by which they were routed.

        A genuine shard gets none: it would not know the field, and routes these collections by itself.

        Raises:
            CommandError: ShardNotFound; FailedToSatisfyReadPreference.
        """
        if not self.routings:
            return b""
        extension = INVOLVED_NAMESPACES.decode()
        if not await operation.router.shards.understands(self.shard, extension, preference):
            return b""
        return involved_namespaces_element({each.namespace: each.versions_for(self.shard) for each in self.routings})

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Have a `StaleRoutingError` of the block say that these routings were used."""
        try:
            yield
        except StaleRoutingError as stale:
            stale.involved = self.routings
            raise


NO_FOREIGN_COLLECTIONS: Final = ForeignCollections("", ())


async def foreign_collections(
    operation: Operation, pipeline: Pipeline, shard: str, *, create_databases: bool = False
) -> ForeignCollections:
    """The other collections that a pipeline names.

    Args:
        operation: on whose behalf.
        pipeline: the stages.
        shard: which is to run them.
        create_databases: create those of the collections that are written.

    Raises:
        CommandError: CommandNotSupported, ``shard`` has not everything of some collection; 28769, the target of
            ``$out`` is sharded.
    """
    routing_cache = operation.router.routing
    found: list[CollectionRouting] = []
    for namespace, is_written in pipeline.involved_namespaces(operation.request.db).items():
        try:
            routing = await routing_cache.collection(namespace, create_database=is_written and create_databases)
        except CommandError as error:
            if error.code == ErrorCode.NamespaceNotFound:
                continue  # nothing is there to be read
            raise
        if not _is_on(routing, shard):
            routing = await routing_cache.reread(routing)  # no shard is asked whether that is still so
        if not _is_on(routing, shard):
            raise _refusal(routing, shard, is_out=is_written and "$out" in pipeline.names)
        found.append(routing)
    return ForeignCollections(shard, tuple(found))


def _is_on(routing: CollectionRouting, shard: str) -> bool:
    return not routing.is_sharded and routing.primary == shard


def _refusal(routing: CollectionRouting, shard: str, *, is_out: bool) -> CommandError:
    if routing.is_sharded and is_out:
        return CommandError(OUT_TO_SHARDED, f"{routing.namespace} cannot be sharded")
    where = "it is sharded" if routing.is_sharded else f"it is on {routing.primary}"
    return CommandError(
        ErrorCode.CommandNotSupported,
        f"This aggregation runs on {shard} and names the collection {routing.namespace}, but {where}: a pipeline over "
        "several shards may only filter and transform documents of one collection",
    )
