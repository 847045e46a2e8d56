"""``validate``."""

from router.ddl.send import send_to_owning_shards
from router.ddl.validation import merge_validation
from router.operation import Operation
from router.registry import Reply, command


@command("validate", reads=True)
async def validate(operation: Operation) -> Reply:
    """Checks that data and indexes of a collection are in order on all shards that own a part of it."""
    _, replies = await send_to_owning_shards(
        operation, operation.namespace, preference=operation.read_preference, may_repeat=True
    )
    return merge_validation(replies)
