"""All kinds of DDL coordinators by their persisted name, and recovery of a coordinator from its document."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator, LocalMigrations
from shardwright.shardd.ddl.coordinators.create_collection import CreateCollection
from shardwright.shardd.ddl.coordinators.create_indexes import CreateIndexes
from shardwright.shardd.ddl.coordinators.drop_indexes import DropIndexes
from shardwright.shardd.ddl.coordinators.drops import DropCollection, DropDatabase
from shardwright.shardd.ddl.coordinators.migration_blocking import SetAllowMigrations
from shardwright.shardd.ddl.coordinators.modify_collection import ModifyCollection
from shardwright.shardd.ddl.coordinators.move_primary import MovePrimary
from shardwright.shardd.ddl.coordinators.rename_collection import RenameCollection
from shardwright.shardd.ddl.coordinators.shard_key_changes import RefineCollectionShardKey, ReshardCollection
from shardwright.sharding.namespace import Namespace
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import is_string

COORDINATORS: Final[Mapping[str, type[Coordinator]]] = {
    kind.operation_type: kind
    for kind in (
        CreateCollection,
        CreateIndexes,
        DropCollection,
        DropDatabase,
        DropIndexes,
        ModifyCollection,
        RefineCollectionShardKey,
        MovePrimary,
        RenameCollection,
        ReshardCollection,
        SetAllowMigrations,
    )
}


logger = get_logger("shardd.coordinators")

_NOT_ARGUMENTS: Final = frozenset({"_id", "recoveredFromDisk", "forwardableOpMetadata", "phase"})


def recovered_coordinator(
    context: ShardContext, migrations: LocalMigrations, document: Mapping[str, Any]
) -> Coordinator | None:
    """Recover a coordinator from its document; None if its kind is unknown to this version.

    A document of an unknown kind is kept for the version that wrote it, and does not prevent other changes.
    """
    identity, phase = document["_id"], document.get("phase")
    kind = COORDINATORS.get(str(identity.get("operationType"))) if isinstance(identity, Mapping) else None
    if kind is None or not is_string(identity.get("namespace")) or not is_string(phase):
        logger.error("Cannot resume a DDL operation of an unknown kind", document=str(document))
        return None
    logger.info(
        "Resuming a DDL operation", namespace=identity["namespace"], operation=identity["operationType"], phase=phase
    )
    arguments = {name: value for name, value in document.items() if name not in _NOT_ARGUMENTS}
    may_bypass = bool(document.get("forwardableOpMetadata", {}).get(BYPASS))
    namespace = Namespace.parse(identity["namespace"])
    return kind(context, migrations, namespace, arguments, phase, may_bypass=may_bypass)
