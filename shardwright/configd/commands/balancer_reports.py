"""``_configsvrBalancerCollectionStatus`` and ``_configsvrBalancerExplain``: what the balancer would do, and why."""

from typing import Any

from shardwright.configd.balancer.compliance import collection_status
from shardwright.configd.balancer.explanation import explain
from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.wire.rawbson import is_string


@config_command("_configsvrBalancerCollectionStatus", write_concern=WriteConcernRule.UNSUPPORTED)
async def balancer_collection_status(operation: Operation) -> dict[str, Any]:
    """Report whether a collection is placed as the balancer wants it, and otherwise the first rule that is violated.

    Raises:
        CommandError: NamespaceNotSharded.
    """
    return await collection_status(operation.primary, str(operation.namespace))


@config_command("_configsvrBalancerExplain", write_concern=WriteConcernRule.UNSUPPORTED)
async def balancer_explain(operation: Operation) -> dict[str, Any]:
    """Report the decisions of a round that would begin now, without carrying them out: of one collection, or of all.

    Raises:
        CommandError: TypeMismatch, InvalidNamespace.
    """
    is_about_all = not is_string(operation.request.get(operation.name.encode()))
    return await explain(operation.primary, None if is_about_all else str(operation.namespace))
