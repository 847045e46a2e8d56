"""Where the other collections are that the stages of a pipeline name."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.router.operations.foreign_collections import OUT_TO_SHARDED
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.stages import WRITING
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.replies.shard_reply import JoinNeededError
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


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
