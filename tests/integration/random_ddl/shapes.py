"""The expected shape of a collection, without its documents: its key, its indexes, its options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.integration.sharded import catalog_entry
from tests.local_cluster import Client

Key = Mapping[str, Any]

KEYS: Final[tuple[Key, ...]] = ({"a": 1}, {"a": 1, "b": 1}, {"b": 1, "_id": 1}, {"_id": "hashed"})
"""Shard keys; the second one refines the first one."""


def index_name(key: Key) -> str:
    """The name that an index has if its creator does not give it one."""
    return "_".join(f"{field}_{kind}" for field, kind in key.items())


@dataclass
class Shape:
    """One collection.

    Attributes:
        key: its shard key; None if it is not sharded.
        indexes: names of its indexes, besides the index on ``_id``.
        level: its ``validationLevel``; None if it has none.
    """

    key: Key | None = None
    indexes: set[str] = field(default_factory=set)
    level: str | None = None

    def reshard(self, key: Key) -> None:
        """Note its new key, for which it has got an index unless it had one that begins with the key."""
        if self.key != key and not any(f"{name}_".startswith(f"{index_name(key)}_") for name in self.indexes):
            self.indexes.add(index_name(key))
        self.key = key

    def check(self, router: Client, namespace: str) -> None:
        """Compare it with the catalog and the collection.

        Raises:
            AssertionError: they differ.
        """
        entry = catalog_entry(router, namespace)
        assert (None if entry is None else entry["key"]) == self.key, namespace
        db, _, name = namespace.partition(".")
        found = list(router[db].list_collections(filter={"name": name}))
        if not found:
            assert (self.key, self.indexes, self.level) == (None, set(), None), f"{namespace} is missing"
            return
        assert found[0]["options"].get("validationLevel") == self.level, namespace
        indexes = set(router[db][name].index_information()) - {"_id_"}
        assert indexes == self.indexes, f"{namespace}: {indexes}, not {self.indexes}"
