"""Taking a sharded collection out of the catalog and off the shards."""

from uuid import UUID

from bson.binary import Binary

from shardd.other_shards import all_shard_ids, send_to_shards
from shardd.shard import Shard
from sharding.namespace import Namespace


async def drop_sharded_collection(shard: Shard, namespace: Namespace, uuid: UUID) -> None:
    """Drop it in the catalog and then, this very collection only, on all shards; may be repeated.

    Raises:
        CommandError: the config servers or a shard refused or could not be reached.
    """
    catalog = await shard.catalog()
    await catalog.commit(
        {"_configsvrCommitDropCollection": str(namespace), "collectionUUID": {"uuid": Binary.from_uuid(uuid)}}
    )
    participate = {
        "_shardsvrDropCollectionParticipant": namespace.collection,
        "fromMigrate": False,
        "collectionUUID": Binary.from_uuid(uuid),
    }
    await send_to_shards(shard, await all_shard_ids(shard), namespace.db, participate)
