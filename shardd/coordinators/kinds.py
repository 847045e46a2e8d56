"""All kinds of coordinators, by the name under which they are persisted."""

from collections.abc import Mapping
from typing import Final

from shardd.coordinators.coordinator import Coordinator
from shardd.coordinators.create_collection import CreateCollection
from shardd.coordinators.drop_collection import DropCollection
from shardd.coordinators.drop_database import DropDatabase
from shardd.coordinators.modify_collection import ModifyCollection
from shardd.coordinators.rename_collection import RenameCollection
from shardd.coordinators.set_allow_migrations import SetAllowMigrations

COORDINATORS: Final[Mapping[str, type[Coordinator]]] = {
    kind.operation_type: kind
    for kind in (
        CreateCollection,
        DropCollection,
        DropDatabase,
        ModifyCollection,
        RenameCollection,
        SetAllowMigrations,
    )
}
