"""All kinds of coordinators, by the name under which they are persisted."""

from collections.abc import Mapping
from typing import Final

from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.coordinators.create_collection import CreateCollection
from shardwright.shardd.ddl.coordinators.create_indexes import CreateIndexes
from shardwright.shardd.ddl.coordinators.drop_collection import DropCollection
from shardwright.shardd.ddl.coordinators.drop_database import DropDatabase
from shardwright.shardd.ddl.coordinators.drop_indexes import DropIndexes
from shardwright.shardd.ddl.coordinators.modify_collection import ModifyCollection
from shardwright.shardd.ddl.coordinators.move_primary import MovePrimary
from shardwright.shardd.ddl.coordinators.refine_collection_shard_key import RefineCollectionShardKey
from shardwright.shardd.ddl.coordinators.rename_collection import RenameCollection
from shardwright.shardd.ddl.coordinators.reshard_collection import ReshardCollection
from shardwright.shardd.ddl.coordinators.set_allow_migrations import SetAllowMigrations

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
