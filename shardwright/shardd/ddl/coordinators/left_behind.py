"""Restoring the coordinators that a former primary left behind from their documents."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator, LocalMigrations
from shardwright.shardd.ddl.coordinators.kinds import COORDINATORS
from shardwright.sharding.namespace import Namespace
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import is_string

logger = get_logger("shardd.coordinators")

_NOT_ARGUMENTS: Final = frozenset({"_id", "recoveredFromDisk", "forwardableOpMetadata", "phase"})


def left_behind(context: ShardContext, migrations: LocalMigrations, document: Mapping[str, Any]) -> Coordinator | None:
    """The coordinator of a document; None if this version does not know that kind.

    Such a document is kept for the version that wrote it, and does not prevent other changes.
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
