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


async def rename_zones(catalog: Catalog, namespace: str) -> None:
    """Let the zones of a collection follow it, if its entry has the mark, which is then removed; errors as `Catalog`.

    Whatever changes zones has to do this first.
    """
    document = await catalog.find_by_id("collections", namespace)
    if document is None or RENAMED_FROM not in document:
        return
    await catalog.update_many("tags", {"ns": document[RENAMED_FROM]}, {"$set": {"ns": namespace}})

    async def remove_mark(transaction: Transaction) -> None:
        present = await transaction.find_one("collections", {"_id": namespace})
        if present is not None:
            kept = {name: value for name, value in present.items() if name not in ("allowMigrations", RENAMED_FROM)}
            transaction.put("collections", [kept])

    await catalog.transaction(remove_mark)
