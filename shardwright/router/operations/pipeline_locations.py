"""Where the other collections are that the stages of a pipeline name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardwright.router.operations.foreign_collections import OUT_TO_SHARDED
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, Span, spans

MAY_WRITE_OUT: Final = frozenset({"$facet", "$out"})
"""Stages that `check_out_targets` looks at."""

_OUT_FIELDS: Final = 16994
_OUT_FIELDS_TEXT: Final = "If an object is passed to $out it must have exactly 2 fields: 'db' and 'coll'"


@dataclass(frozen=True, slots=True)
class LocatedStage:
    """A stage, and the collections it names.

    Attributes:
        stage: the stage.
        routings: the routing of each collection that exists, or whose database does.
    """

    stage: Stage
    routings: tuple[CollectionRouting, ...]

    @property
    def shard(self) -> str | None:
        """The shard that has all of these collections, None if the stage may run anywhere.

        Raises:
            JoinNeededError: no shard has, and the stage reads them.
            CommandError: CommandNotSupported, no shard has, and the stage writes; 28769, the target of ``$out`` is
                sharded.
        """
        shards = {routing.primary for routing in self.routings if not routing.is_sharded}
        sharded = next((routing for routing in self.routings if routing.is_sharded), None)
        if sharded is not None:
            raise refusal(sharded, self.stage)
        if len(shards) > 1:
            raise refusal(self.routings[-1], self.stage)
        return shards.pop() if shards else None


async def locate(operation: Operation, stages: Sequence[Stage]) -> list[LocatedStage]:
    """Look up the collections that stages name.

    Raises:
        CommandError: InvalidBSON; the config servers did not answer.
    """
    found, cache = [], operation.context.routing
    for stage in stages:
        names = Pipeline((stage,)).involved_namespaces(operation.request.db)
        routings = [routing for name in names if (routing := await cache.find(name)) is not None]
        # No shard would notice that a collection is not sharded any more.
        found.append(LocatedStage(stage, tuple([await cache.confirmed_if_sharded(each) for each in routings])))
    return found


async def target_of(operation: Operation, stage: Stage) -> CollectionRouting | None:
    """The routing of the collection that an ``$out`` or ``$merge`` writes; None if it names none.

    Raises:
        CommandError: NamespaceNotFound, its database does not exist; the config servers did not answer.
    """
    cache, names = operation.context.routing, Pipeline((stage,)).involved_namespaces(operation.request.db)
    if not names:
        return None
    # No shard would notice that a collection is not sharded any more.
    return await cache.confirmed_if_sharded(await cache.collection(next(iter(names))))


async def check_out_targets(operation: Operation, pipeline: Pipeline) -> None:
    """Look up what ``$out`` writes, also inside ``$facet``, as a mongos does before anything else.

    Raises:
        CommandError: 16994, it is not described by a database and a collection; NamespaceNotFound, its database does
            not exist; 28769, it is sharded.
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
    """The stages in an array, without what a mongod will refuse."""
    elements = spans(body, array[2]) if array[0] == ARRAY else ()
    for _, (kind, _, start, end) in elements:
        if kind == OBJECT and len(list(spans(body, start))) == 1:
            yield Stage.parse(body[start:end])


def refusal(routing: CollectionRouting, stage: Stage) -> CommandError:
    """The error for a stage that no shard can run because of one of its collections."""
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
