"""``_addShard`` and ``shardingState``: becoming a shard, and reporting its identity."""

from typing import Any

from shardwright.shardd.cluster.identity import ShardIdentity
from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


@command("_addShard", admin_only=True, needs_identity=False)
async def add_shard(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Persist and adopt the identity that a config server gives to this replica set, unless it has it already.

    Raises:
        CommandError: IllegalOperation, it is already another shard, or belongs to another cluster.
    """
    identity = ShardIdentity.from_document(request.get(b"shardIdentity") or {})
    try:
        current = await shard.context.load_identity()
    except CommandError as error:
        if error.code != ErrorCode.ShardingStateNotInitialized:
            raise
    else:
        if not current.is_same_shard(identity):
            raise CommandError(
                ErrorCode.IllegalOperation,
                f"cannot become shard {identity.shard_name} of cluster {identity.cluster_id}: this is already shard "
                f"{current.shard_name} of cluster {current.cluster_id}",
            )
        await _end_former_membership(shard, current)
    document = identity.to_document()
    update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
    await shard.context.mongod.write(
        "admin", {"update": "system.version", "updates": [update], "writeConcern": MAJORITY}
    )
    shard.context.adopt_identity(identity)
    return {}


async def _end_former_membership(shard: ShardComponents, identity: ShardIdentity) -> None:
    """Admit what coordinators had made wait when this shard was removed: they do not reach it any more.

    Nothing is done on a shard of the cluster, which this command reaches only if it comes late.
    """
    catalog = await shard.context.catalog()
    if identity.shard_name not in await catalog.shards():
        await shard.renames.abandon()
        await shard.blocked.abandon()


@command("shardingState", admin_only=True, primary_only=False, needs_identity=False)
async def sharding_state(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report this shard's identity, and the collection versions that it knows."""
    try:
        identity = await shard.context.load_identity()
    except CommandError as error:
        if error.code != ErrorCode.ShardingStateNotInitialized:
            raise
        return {"enabled": False}
    versions = {
        state.namespace: state.table.shard_version(identity.shard_name).lastmod
        for state in shard.context.namespaces
        if state.table is not None
    }
    return {
        "enabled": True,
        "configServer": identity.config_string,
        "shardName": identity.shard_name,
        "clusterId": identity.cluster_id,
        "versions": versions,
    }
