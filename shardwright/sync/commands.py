"""DDL commands at the target, for one particular collection each.

No transaction can fence DDL. A process may stall between the check of its lease and a command, and another one may take
over and continue in the meantime. So a command also names its collection by UUID, as read before the check. Such a UUID
never belongs to a collection that a later process has created. The server refuses the command if another collection
has the name.
"""

from collections.abc import Mapping
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from pymongo.errors import OperationFailure

from shardwright.sync.ends import NAMESPACE_NOT_FOUND, End, repeated
from shardwright.sync.store import Store

_OF_NAME: Final = frozenset({"drop", "collMod", "createIndexes", "dropIndexes"})
_OF_NAMESPACE: Final = frozenset(
    {"renameCollection", "shardCollection", "refineCollectionShardKey", "reshardCollection"}
)


async def run_command(store: Store, target: End, database: str, command: Mapping[str, Any], *harmless: int) -> None:
    """Run a command at the target.

    Args:
        harmless: codes of errors to ignore.

    Raises:
        LeaseLostError: another process has taken over.
    """
    kind, first = next(iter(command.items()))
    name = first if kind in _OF_NAME else first.partition(".")[2] if kind in _OF_NAMESPACE else None
    of = first.partition(".")[0] if kind in _OF_NAMESPACE else database
    majority: dict[str, Any] = {**command, "writeConcern": {"w": "majority"}}
    is_repeated = False

    async def attempt() -> None:
        nonlocal is_repeated
        sent = majority
        if name is not None:
            found = await target.collections(of, is_sharded=False, named=name, has_indexes=False)
            if not found and NAMESPACE_NOT_FOUND in harmless:
                return
            if found and found[0].uuid is not None:  # a view has none
                sent = {**majority, "collectionUUID": Binary(found[0].uuid, UUID_SUBTYPE)}
        # After an error, such as that another collection has the name, another process may have taken over.
        await store.check_lease(is_doubtful=is_repeated)
        is_repeated = True
        await target.command(database, sent)

    try:
        await repeated(attempt)
    except OperationFailure as error:
        if error.code not in harmless:
            raise
