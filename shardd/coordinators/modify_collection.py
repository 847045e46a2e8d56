"""``collMod`` on all shards that have a collection (``_shardsvrCollMod``)."""

from typing import Any, ClassVar, Final

from shardd.coordinators.coordinator import Coordinator
from shardd.other_shards import send_to_shards
from sharding.catalog.reads import read_routing

UPDATE_SHARDS: Final = "UpdateShards"


class ModifyCollection(Coordinator):
    """The argument ``collModRequest`` holds the fields of the user's ``collMod``."""

    operation_type: ClassVar[str] = "collMod_V2"

    async def run(self) -> dict[str, Any]:
        """Run it on every shard that owns chunks, or where an unsharded collection or view lives, which is here.

        Raises:
            CommandError: a shard refused; the others may have been changed.
        """
        shard, namespace = self.shard, self.namespace
        catalog = await shard.catalog()
        table = await catalog.read(read_routing(str(namespace)))
        owners = {shard.require_identity().shard_name} if table is None else set(table.shards)
        if len(owners) > 1:
            await self.enter_phase(UPDATE_SHARDS)
        participate = {
            "_shardsvrCollModParticipant": namespace.collection,
            "collModRequest": self.arguments["collModRequest"],
            "needsUnblock": False,
            "performViewChange": table is None,
        }
        with self.point_of_no_return():
            replies = await send_to_shards(shard, owners, namespace.db, participate)
        shards = await catalog.shards()
        return {"raw": {shards[shard_id].host: reply["result"] for shard_id, reply in sorted(replies.items())}}
