"""A shard's metadata of one database: its catalog entry and version."""

import time
from math import inf
from typing import Final

from shardwright.shardd.metadata.namespace_state import BlockableState
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.versions import DatabaseVersion, stale_database
from shardwright.wire.passages import EPOCH

_ACCEPTED_MAX: Final = 256


class DatabaseState(BlockableState):
    """The state of one database on this shard.

    Attributes:
        entry: its entry in the catalog; None if it is unknown or does not exist.
        accepted: raw ``databaseVersion`` values that have matched.
        is_moving: whether its collections are being copied to another shard, so that none may be created.
        last_arrival: monotonic time of the last completed copy of its collections to this shard.
        generation: incremented whenever the entry is dropped, so that a refresh that began earlier is detected.
    """

    __slots__ = (
        "__weakref__",
        "accepted",
        "entry",
        "generation",
        "is_moving",
        "last_arrival",
        "name",
    )

    def __init__(self, name: str) -> None:
        super().__init__(f"the database {name}")
        self.name = name
        self.entry: DatabaseEntry | None = None
        self.accepted: set[bytes] = set()
        self.generation = 0
        self.is_moving = False
        self.last_arrival = -inf

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the state is recreated."""
        if self.critical_section is not None or self.is_moving:
            return False
        return self.entry is None and self.last_arrival == -inf

    def learn(self, entry: DatabaseEntry | None) -> None:
        """Set the entry read from the catalog; None if the database does not exist."""
        self.entry = entry
        EPOCH.bump()
        self.accepted = set() if entry is None else {entry.version.raw}

    def forget(self) -> None:
        """Drop the entry, which may be stale."""
        self.generation += 1
        EPOCH.bump()
        self.entry = None
        self.accepted = set()

    def note_arrival(self) -> None:
        """Record that a copy of its collections has been completed."""
        self.last_arrival = time.monotonic()

    def check_version(self, raw: bytes, received: DatabaseVersion) -> None:
        """Compare a version with the shard's, and cache the bytes of one that matches; else raise StaleDbVersion."""
        wanted = None if self.entry is None else self.entry.version
        if wanted is None or not received.matches(wanted):
            stale = wanted is None or wanted.is_older_than(received)
            raise stale_database(self.name, received, wanted, may_shard_be_stale=stale)
        if len(self.accepted) >= _ACCEPTED_MAX:
            self.accepted = {wanted.raw}
        self.accepted.add(raw)
