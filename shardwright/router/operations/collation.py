"""The collation by which an aggregation compares, wherever its stages run."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.router.operations.listed_collection import listed_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.find_arguments import collation_of

SIMPLE: Final[Mapping[str, Any]] = {"locale": "simple"}


async def effective_collation(operation: Operation, routing: CollectionRouting | None) -> Mapping[str, Any]:
    """The collation that an aggregation names, else its collection's default, else the simple one.

    Args:
        operation: the aggregation.
        routing: of its collection; None if it has none, or none that exists.

    Raises:
        CommandError: TypeMismatch; or the shard of an unsharded collection did not answer.
    """
    given = collation_of(operation.request)
    if given or routing is None:
        return given or SIMPLE
    if routing.table is not None:
        return routing.table.collection.default_collation or SIMPLE
    listed = await listed_collection(operation, routing) or {}
    collation: Mapping[str, Any] = listed.get("options", {}).get("collation", SIMPLE)
    return collation
