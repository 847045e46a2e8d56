"""One collection after the other changes its shape, and a router without notification continues to write to all.

All collections are created and used first, so that the second router has cached each of them before it changes.
"""

from itertools import cycle
from typing import Final

from pymongo.database import Database

from tests.integration.sharded import LOWER, UPPER, Document, catalog_entry, shard_by_range
from tests.local_cluster import Client
from tests.resharding.resharded import split_parts
from tests.sampling import many

COLLECTIONS: Final = many(100, 4)
CHANGES: Final = ("rename", "reshard", "reshard and rename", "rename there and back")


def test_a_stale_router_loses_nothing(routers: tuple[Client, Client], database: Database[Document]) -> None:
    first, stale = routers
    names = [f"c{number}" for number in range(COLLECTIONS)]
    changes = dict(zip(names, cycle(CHANGES), strict=False))
    written: dict[str, set[int]] = {}
    for name in names:
        shard_by_range(database, name)
        stale[database.name][name].insert_many([{"_id": n, "key": n * 100, "other": 900 - n * 100} for n in range(10)])
        written[name] = set(range(10))
    for number, (name, change) in enumerate(changes.items()):
        namespace = f"{database.name}.{name}"
        if "reshard" in change:
            reshard = {"reshardCollection": namespace, "key": {"other": 1}}
            first.admin.command({**reshard, "_presetReshardedChunks": split_parts("other")})
        now = f"{name}_renamed" if "rename" in change else name
        if "rename" in change:
            first.admin.command("renameCollection", namespace, to=f"{database.name}.{now}")
        if change == "rename there and back":
            # The name is the same as before, and so are UUID and chunks; the version is not.
            assert stale[database.name][now].count_documents({}) == 10
            first.admin.command("renameCollection", f"{database.name}.{now}", to=namespace)
            now = name
        collection = stale[database.name][now]
        if number % 2:
            assert collection.update_one({"key": 900, "other": 0}, {"$inc": {"times": 1}}).modified_count == 1
        collection.insert_many([{"_id": n, "key": n * 40, "other": n * 40} for n in (10, 20)])
        written[name] |= {10, 20}
        assert {each["_id"] for each in collection.find()} == written[name], change
        # Whoever still writes to a name that nobody has any more gets a new collection, on the primary shard.
        if now != name:
            stale[database.name][name].insert_one({"_id": 0, "key": 999})
            assert [each["_id"] for each in first[database.name][name].find()] == [0]
            assert catalog_entry(first, namespace) is None
        assert {each["_id"] for each in first[database.name][now].find()} == written[name], change
    entry = stale.config.databases.find_one({"_id": database.name})
    assert entry is not None
    assert entry["primary"] == LOWER
    first.admin.command("movePrimary", database.name, to=UPPER)
    for name in names:
        assert stale[database.name][name].count_documents({}) in (1, len(written[name]))
    assert database.command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []
