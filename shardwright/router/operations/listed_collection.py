"""What the primary shard of a database knows of an unsharded collection or a view."""

from collections.abc import Mapping
from typing import Any

from shardwright.router.operations.operation import Operation
from shardwright.router.placement.collection_routing import CollectionRouting


async def listed_collection(operation: Operation, routing: CollectionRouting) -> Mapping[str, Any] | None:
    """The entry of ``listCollections``, None if there is no such collection.

    Args:
        operation: the operation that needs it.
        routing: where the collection would be.

    Raises:
        CommandError: the primary shard could not be asked.
    """
    db, _, name = routing.namespace.partition(".")
    listing = {"listCollections": 1, "filter": {"name": name}}
    reply = await operation.context.sender.command(routing.primary, db, listing, may_repeat=True)
    entries: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return entries[0] if entries else None
