"""Order of elections, to detect a deposed primary that still claims to be primary.

For members from MongoDB 6.0 on, ``electionId`` is compared first; for older ones, ``setVersion``.
"""

from dataclasses import dataclass
from typing import Final

from shardwright.wire.discovery.server import Server

_ELECTION_ID_FIRST_WIRE_VERSION: Final = 17
"""Wire version of MongoDB 6.0."""


@dataclass(frozen=True)
class Election:
    """The two values that order elections. Either may be missing; a missing one is older than any value."""

    election_id: bytes | None = None
    set_version: int | None = None

    @classmethod
    def of(cls, primary: Server) -> "Election":
        """Return the election that a primary reports."""
        return cls(primary.election_id, primary.set_version)

    def is_older_than(self, newest: "Election", wire_version: int) -> bool:
        """Whether a primary of this election, with this newest wire version, has been deposed."""
        if wire_version >= _ELECTION_ID_FIRST_WIRE_VERSION:
            return self._by_election_id() < newest._by_election_id()
        if not self._is_complete or not newest._is_complete:
            return False
        return self._by_set_version() < newest._by_set_version()

    def merged_with(self, election: "Election", wire_version: int) -> "Election":
        """Return the newest known election after a primary of ``election`` was accepted; so far it was this one."""
        if wire_version >= _ELECTION_ID_FIRST_WIRE_VERSION:
            return election
        versions = [each for each in (self.set_version, election.set_version) if each is not None]
        return Election(
            election.election_id if election._is_complete else self.election_id, max(versions, default=None)
        )

    @property
    def _is_complete(self) -> bool:
        return self.election_id is not None and self.set_version is not None

    def _by_election_id(self) -> tuple[bytes, int]:
        return (self.election_id or b"", -1 if self.set_version is None else self.set_version)

    def _by_set_version(self) -> tuple[int, bytes]:
        election_id, set_version = self._by_election_id()
        return set_version, election_id


NO_ELECTION: Final = Election()
