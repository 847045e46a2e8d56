"""Whether one collection is placed as the balancer wants it."""

from typing import Any

from shardwright.configd.balancer.cluster_view import chunk_bytes_max, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.round import answers_for
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.policy import first_violation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def collection_status(primary: Primary, namespace: str) -> dict[str, Any]:
    """The reply to ``balancerCollectionStatus``; the chunk size is in MB.

    Raises:
        CommandError: NamespaceNotSharded; or the catalog could not be read.
        BackendError: the mongod does not answer.
    """
    configuration = await Configuration().reread(primary.catalog)
    view = await read_view(primary, configuration, namespace)
    if namespace not in view.entries:
        raise CommandError(ErrorCode.NamespaceNotSharded, "Collection unsharded or undefined")
    violation = await answers_for(primary, view).drive(first_violation(view.cluster, view.collections[0]))
    megabytes = chunk_bytes_max(view.entries[namespace], configuration) / (1 << 20)
    reply: dict[str, Any] = {"chunkSize": round(megabytes, 3), "balancerCompliant": violation is None}
    if violation is not None:
        reply["firstComplianceViolation"] = violation.value
    return reply
