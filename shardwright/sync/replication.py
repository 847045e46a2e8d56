"""The request for a replication: source, target and filters, and the id that is a digest of them. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

ID_LENGTH: Final = 24

OWN_DATABASE: Final = "shardwright"
"""The database of checkpoints, on both sides."""

NOT_REPLICATED: Final = frozenset({"admin", "config", "local", OWN_DATABASE})
"""Databases that belong to a deployment, and our own."""


@dataclass(frozen=True)
class Filter:
    """The namespaces that are replicated.

    Attributes:
        include: databases (``db``) and collections (``db.collection``); all if empty.
        exclude: databases and collections; stronger than ``include``.
    """

    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()

    def has(self, namespace: str) -> bool:
        """Whether a collection is replicated."""
        database, _, collection = namespace.partition(".")
        if database in NOT_REPLICATED or not collection or collection.startswith("system."):
            return False
        if self.is_excluded(namespace):
            return False
        return not self.include or bool(self.include & {database, namespace})

    def is_excluded(self, namespace: str) -> bool:
        """Whether the user has excluded a collection, or its database, by name."""
        return bool(self.exclude & {namespace.partition(".")[0], namespace})

    def may_have(self, database: str) -> bool:
        """Whether any collection of a database can be replicated."""
        if database in NOT_REPLICATED or database in self.exclude:
            return False
        return not self.include or any(each.partition(".")[0] == database for each in self.include)


@dataclass(frozen=True)
class Replication:
    """A replication as the user has requested it.

    Attributes:
        shard: shard keys for the target, by namespace.
        is_reversed: whether source and target have swapped their roles; then the collections of ``shard`` keep the
            target's keys.
        zones: whether zones are carried, for collections that have the same shard key at both ends.
    """

    source: str
    target: str
    filter: Filter = Filter()
    shard: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_reversed: bool = False
    zones: bool = True

    def swapped(self) -> "Replication":
        """Return the opposite direction."""
        return replace(self, source=self.target, target=self.source, is_reversed=not self.is_reversed)

    @property
    def id(self) -> str:
        """A digest of source, target and filters; credentials and the order of hosts do not matter."""
        parts = [place(self.source), place(self.target), sorted(self.filter.include), sorted(self.filter.exclude)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:ID_LENGTH]


def place(uri: str) -> str:
    """Return the scheme and hosts of a connection string, without credentials and options."""
    parts = urlsplit(uri)
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    return f"{parts.scheme}://{','.join(sorted(hosts))}"
