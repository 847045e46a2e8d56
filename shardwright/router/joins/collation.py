"""The collation by which an aggregation compares, which its reads of other collections must be given."""

from typing import Any

from shardwright.router.operations import aggregation
from shardwright.router.operations.operation import Operation
from shardwright.router.reads.find_arguments import collation_of
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import STRING


async def effective_collation(operation: Operation) -> dict[str, Any]:
    """The collation that the command names, else its collection's default, else the simple one.

    Raises:
        CommandError: it could not be found out.
    """
    if next(iter(operation.request.fields.values()))[0] != STRING:
        return dict(collation_of(operation.request) or aggregation.SIMPLE)
    try:
        routing = await operation.context.routing.collection(operation.namespace)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return dict(collation_of(operation.request) or aggregation.SIMPLE)
    return dict(await aggregation.effective_collation(operation, routing))
