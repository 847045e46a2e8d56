"""The zones of a collection that has been renamed, which follow it one by one, however many they are.

Until all of them have, the collection's entry has a mark, and migrations stay forbidden.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction

RENAMED_FROM: Final = "zonesBeingRenamed"
"""The field of the entry, our own, with the former name."""


async def marked(transaction: Transaction, entry: Mapping[str, Any], source: str) -> dict[str, Any]:
    """An entry under its new name, which allows migrations unless zones have to follow it from the former name."""
    kept = {name: value for name, value in entry.items() if name != "allowMigrations"}
    if not await transaction.find("tags", {"ns": source}, limit=1):
        return kept
    return {**kept, "allowMigrations": False, RENAMED_FROM: source}


async def finish_renames(catalog: Catalog, namespace: str) -> None:
    """Let zones follow the collection that has a name, and those that had it, so that it has its own zones only.

    Whatever changes zones has to do this first. Errors as `Catalog`.
    """
    marked_entries = {"$or": [{"_id": namespace, RENAMED_FROM: {"$exists": True}}, {RENAMED_FROM: namespace}]}
    for entry in await catalog.find("collections", marked_entries):
        await _rename_zones(catalog, entry[RENAMED_FROM], entry["_id"])


async def _rename_zones(catalog: Catalog, source: str, target: str) -> None:
    await catalog.update_many("tags", {"ns": source}, {"$set": {"ns": target}})

    async def remove_mark(transaction: Transaction) -> None:
        present = await transaction.find_one("collections", {"_id": target})
        if present is not None:
            kept = {name: value for name, value in present.items() if name not in ("allowMigrations", RENAMED_FROM)}
            transaction.put("collections", [kept])

    await catalog.transaction(remove_mark)
