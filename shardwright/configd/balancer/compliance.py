"""Whether one collection is placed as the balancer wants it."""

from typing import Any

from shardwright.configd.balancer.cluster_view import chunk_bytes_max, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.defragmentation.progress import defragmentation_details
from shardwright.configd.balancer.round import answers_for
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.policy import first_violation
from shardwright.sharding.catalog.collection_entry import CollectionEntry
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
    entry = view.entries[namespace]
    if entry.is_defragmented:
        details = await defragmentation_details(primary, entry, chunk_bytes_max(entry, configuration))
        return _reply(entry, configuration, "defragmentingChunks", details)
    violation = await answers_for(primary, view).drive(first_violation(view.cluster, view.collections[0]))
    return _reply(entry, configuration, None if violation is None else violation.value)


def _reply(
    entry: CollectionEntry, configuration: Configuration, violation: str | None, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    megabytes = chunk_bytes_max(entry, configuration) / (1 << 20)
    reply: dict[str, Any] = {"chunkSize": round(megabytes, 3), "balancerCompliant": violation is None}
    if violation is not None:
        reply["firstComplianceViolation"] = violation
    if details is not None:
        reply["details"] = details
    return reply
