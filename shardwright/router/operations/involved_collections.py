"""The other collections named in a pipeline: their locations, and the shards that can run its stages.

A shard that runs a stage must have all of each collection that the stage names.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.placement.routing_info import CollectionRouting, StaleRoutingError
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.sharding.pipelines.pipeline import INVOLVED_NAMESPACES, Pipeline, Stage, involved_namespaces_element
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, Span, spans
from shardwright.wire.read_preference import ReadPreference

OUT_TO_SHARDED: Final = 28769
"""MongoDB's error code for an ``$out`` whose target is sharded."""

_LOCAL: Final = "local"
"""Each mongod's own database, where mongods refuse writes of pipelines."""


@dataclass(frozen=True, slots=True)
class ForeignCollections:
    """The collections that a pipeline names besides its own.

    Attributes:
        routings: their routing. All are unsharded, and on the shard that runs the pipeline.
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
    """Look up the other collections that a pipeline names.

    A genuine shard does not understand the field for their versions. It routes its reads itself. For it, the routing of
    collections that are written is refreshed first.

    Args:
        create_databases: whether to create missing databases of written collections, on ``shard``.

    Raises:
        JoinNeededError: ``shard`` does not have all of a collection that is read.
        CommandError: CommandNotSupported, it does not have all of a collection that is written; 28769, the target of
            ``$out`` is sharded.
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
            continue  # the database does not exist, so the collection is empty
        # No shard checks the version of this routing.
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


_OUT_FIELDS: Final = 16994
_OUT_FIELDS_TEXT: Final = "If an object is passed to $out it must have exactly 2 fields: 'db' and 'coll'"


@dataclass(frozen=True, slots=True)
class LocatedStage:
    """A stage, and the collections it names.

    Attributes:
        routings: the routing of each collection whose database exists.
    """

    stage: Stage
    routings: tuple[CollectionRouting, ...]

    @property
    def shard(self) -> str | None:
        """The shard that has all of these collections, None if the stage may run anywhere.

        Raises:
            JoinNeededError: no shard has them all, and the stage reads them.
            CommandError: CommandNotSupported, no shard has them all, and the stage writes; 28769, the target of
                ``$out`` is sharded.
        """
        shards = {routing.primary for routing in self.routings if not routing.is_sharded}
        sharded = next((routing for routing in self.routings if routing.is_sharded), None)
        if sharded is not None:
            raise refusal(sharded, self.stage)
        if len(shards) > 1:
            raise refusal(self.routings[-1], self.stage)
        return shards.pop() if shards else None


async def locate(operation: Operation, stages: Sequence[Stage]) -> list[LocatedStage]:
    """Look up the collections that stages name."""
    found, cache = [], operation.context.routing
    for stage in stages:
        names = Pipeline((stage,)).involved_namespaces(operation.request.db)
        routings = [routing for name in names if (routing := await cache.find(name)) is not None]
        # No shard would report that a collection is no longer sharded.
        found.append(LocatedStage(stage, tuple([await cache.confirmed_if_sharded(each) for each in routings])))
    return found


async def target_of(operation: Operation, stage: Stage) -> CollectionRouting | None:
    """Return the routing of the collection that an ``$out`` or ``$merge`` writes; None if it names none.

    Raises:
        CommandError: NamespaceNotFound, its database does not exist.
    """
    cache, names = operation.context.routing, Pipeline((stage,)).involved_namespaces(operation.request.db)
    if not names:
        return None
    # No shard would report that a collection is no longer sharded.
    return await cache.confirmed_if_sharded(await cache.collection(next(iter(names))))


async def merge_target(operation: Operation, pipeline: Pipeline) -> CollectionRouting | None:
    """Return the routing of the target of a ``$merge`` at the end of a pipeline; None without such a target.

    Raises:
        CommandError: NamespaceNotFound, its database does not exist.
    """
    if not pipeline.stages or pipeline.stages[-1].name != "$merge":
        return None
    return await target_of(operation, pipeline.stages[-1])


async def check_out_targets(operation: Operation, pipeline: Pipeline) -> None:
    """Look up the targets of ``$out``, also inside ``$facet``, before anything else, as mongos does.

    Raises:
        CommandError: 16994, the target is not a database and a collection; NamespaceNotFound, its database does not
            exist; 28769, it is sharded.
    """
    for stage in _outs(pipeline.stages):
        routing = await target_of(operation, stage)
        if routing is not None and routing.is_sharded:
            raise refusal(routing, stage)


def _outs(stages: Iterable[Stage]) -> Iterator[Stage]:
    for stage in stages:
        if stage.name == "$out":
            target = stage.specification
            if isinstance(target, Mapping) and target.keys() != {"db", "coll"}:
                raise CommandError(_OUT_FIELDS, _OUT_FIELDS_TEXT)
            yield stage
        elif stage.name == "$facet" and stage.span[0] == OBJECT:
            for _, facet in spans(stage.raw, stage.span[2]):
                yield from _outs(_stages_in(stage.raw, facet))


def _stages_in(body: bytes, array: Span) -> Iterator[Stage]:
    """Yield the stages in an array, without malformed ones, which a mongod will refuse."""
    elements = spans(body, array[2]) if array[0] == ARRAY else ()
    for _, (kind, _, start, end) in elements:
        if kind == OBJECT and len(list(spans(body, start))) == 1:
            yield Stage.parse(body[start:end])


def refusal(routing: CollectionRouting, stage: Stage) -> CommandError:
    """Return the error for a stage that no shard can run because of one of its collections."""
    if routing.is_sharded and stage.name == "$out":
        return CommandError(OUT_TO_SHARDED, f"{routing.namespace} cannot be sharded")
    where = "it is sharded" if routing.is_sharded else f"it is on {routing.primary}"
    verb = "write to" if stage.name in WRITING else "read"
    error = CommandError(
        ErrorCode.CommandNotSupported,
        f"{stage.name} would {verb} the collection {routing.namespace}, but {where}: the other collections of a stage "
        "have to be unsharded and on one shard",
    )
    return error if stage.name in WRITING else JoinNeededError(error, frozenset({routing.namespace}))


@dataclass(frozen=True, slots=True)
class Segment:
    """Stages that one shard runs on the results of others."""

    shard: str
    stages: tuple[Stage, ...]

    @property
    def is_writing(self) -> bool:
        """Whether it has a ``$out`` or a ``$merge``."""
        return any(stage.name in WRITING for stage in self.stages)


def segments_of(stages: Sequence[LocatedStage], anywhere: Sequence[str]) -> tuple[Segment, ...]:
    """Form as few segments as possible, each on the shard that has the collections of its stages.

    Args:
        anywhere: the shards to choose from for stages without collections.

    Raises:
        CommandError: from `LocatedStage.shard`.
    """
    segments: list[tuple[str | None, list[Stage]]] = [(None, [])]
    for located in stages:
        shard, held = segments[-1]
        wanted = located.shard
        if wanted is not None and shard not in (None, wanted):
            segments.append((wanted, [located.stage]))
        else:
            held.append(located.stage)
            segments[-1] = (shard or wanted, held)
    return tuple(Segment(shard or random.choice(anywhere), tuple(held)) for shard, held in segments)
