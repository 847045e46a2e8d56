"""Giving a sharded collection another shard key (``_shardsvrReshardCollection``).

This coordinator keeps other changes of the database away until the config servers, which lead the operation, have ended
it. If this shard's primary is lost, the next one takes the lock again, and waits for the same operation. Its id is
persisted before the config servers learn of it, so that they do not begin it again if it has been aborted meanwhile. A
router gives the id itself, because it repeats a request whose answer is lost, and this coordinator may be gone by then.
"""

from typing import Any, ClassVar, Final
from uuid import uuid4

from bson.binary import Binary

from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.expected_uuid import check_expected_uuid

RESHARD: Final = "reshard"
_ID: Final = "reshardingUUID"
_UUID: Final = "collectionUUID"


class ReshardCollection(Coordinator):
    """The arguments are the fields of the request: ``key``, ``unique``, ``numInitialChunks``, ``zones`` and so on."""

    operation_type: ClassVar[str] = "reshardCollection"
    not_compared: ClassVar[frozenset[str]] = frozenset({_ID})

    @property
    def conflict_text(self) -> str:
        """MongoDB 6.0 has a text of its own here."""
        return "Another reshard collection with different arguments is already running for the same namespace"

    async def run(self) -> dict[str, Any]:
        """Have the config servers reshard the collection, and wait for the end.

        Raises:
            CommandError: NamespaceNotSharded; CollectionUUIDMismatch; BadValue and others, an option is not allowed;
                the error for which the operation was aborted.
        """
        if self.phase is None:
            await check_expected_uuid(self.context.mongod, self.namespace, self.arguments.get(_UUID))
        await self.enter_phase(RESHARD, **{_ID: self.arguments.get(_ID, Binary.from_uuid(uuid4()))})
        options = {name: value for name, value in self.arguments.items() if name not in ("session", _UUID)}
        catalog = await self.context.catalog()
        with self.point_of_no_return():
            await catalog.commit({"_configsvrReshardCollection": str(self.namespace), **options})
        return {}
