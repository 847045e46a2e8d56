"""What a shard knows about one database: the entry in the catalog, with its version."""

import time
from math import inf
from typing import TYPE_CHECKING, Final

from shardwright.shardd.metadata.stale_errors import stale_database
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.passages import EPOCH

if TYPE_CHECKING:
    from shardwright.shardd.metadata.namespace_state import CriticalSection

_ACCEPTED_MAX: Final = 256


class DatabaseState:
    """The state of one database on this shard.

    Attributes:
        name: the database's name.
        entry: its entry in the catalog; None if it is unknown or does not exist.
        accepted: raw ``databaseVersion`` values that are known to match.
        critical_section: the one that is on, if any.
        is_moving: whether its collections are being copied to another shard, so that none may be created.
        last_arrival: when a copy of its collections was last completed here, by the monotonic clock.
        generation: incremented whenever the entry is forgotten, which shows whether a refresh began before that.
    """

    __slots__ = (
        "__weakref__",
        "accepted",
        "critical_section",
        "entry",
        "generation",
        "is_moving",
        "last_arrival",
        "name",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.entry: DatabaseEntry | None = None
        self.accepted: set[bytes] = set()
        self.critical_section: CriticalSection | None = None
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
        """Set the entry that was read from the catalog; None if the database does not exist."""
        self.entry = entry
        EPOCH.bump()
        self.accepted = set() if entry is None else {entry.version.raw}

    def forget(self) -> None:
        """Forget the entry, which may be out of date."""
        self.generation += 1
        EPOCH.bump()
        self.entry = None
        self.accepted = set()

    def note_arrival(self) -> None:
        """Record that a copy of its collections has been completed."""
        self.last_arrival = time.monotonic()

    def check(self, raw: bytes, received: DatabaseVersion) -> None:
        """Refuse a version that does not match, and remember the bytes of one that does.

        Raises:
            StaleError: StaleDbVersion.
        """
        wanted = None if self.entry is None else self.entry.version
        if wanted is None or not received.matches(wanted):
            stale = wanted is None or wanted.is_older_than(received)
            raise stale_database(self.name, received, wanted, may_shard_be_stale=stale)
        if len(self.accepted) >= _ACCEPTED_MAX:
            self.accepted = {wanted.raw}
        self.accepted.add(raw)

    def release(self) -> None:
        """End the critical section, if one is on."""
        section, self.critical_section = self.critical_section, None
        if section is not None:
            section.release()
