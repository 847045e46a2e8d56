"""Ending the builds of a creation of indexes that is to be undone, because of a drop or because it was killed."""

from typing import Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.index_creations import IndexCreation
from shardwright.shardd.ddl.coordinators.index_owners import IndexOwners, names_of, namings
from shardwright.sharding.namespace import Namespace

ROUND_SECONDS: Final = 0.2
"""How soon builds are looked for again that the creation has begun only now."""


async def end_builds(owners: IndexOwners, namespace: Namespace, creation: IndexCreation) -> None:
    """End the builds of a creation on the owners that have begun with them, once.

    They end as for a ``dropIndexes``: a mongod 6.0 whose builds are killed may crash.

    Raises:
        CommandError: an owner could not be reached.
    """
    for shard, indexes in (await owners.indexes()).items():
        begun = creation.building.get(shard, creation.names) & names_of(indexes)
        for named in namings(indexes, begun):
            drop = {"dropIndexes": namespace.collection, "index": named, BYPASS: True}
            await owners.ask(drop, {shard})
