"""Which of two primaries was elected later, while a deposed one has not noticed yet.

Members from MongoDB 6.0 on compare ``electionId`` first, older ones ``setVersion``.
"""

from dataclasses import dataclass
from typing import Final

from shardwright.wire.discovery.server import Server

_ELECTION_ID_FIRST_WIRE_VERSION: Final = 17
"""MongoDB 6.0's."""


@dataclass(frozen=True)
class Election:
    """The two numbers that order elections; either may be missing, which is older than any."""

    election_id: bytes | None = None
    set_version: int | None = None

    @classmethod
    def of(cls, primary: Server) -> "Election":
        """That of a primary, as it reports it."""
        return cls(primary.election_id, primary.set_version)

    def is_older_than(self, newest: "Election", wire_version: int) -> bool:
        """Whether a primary of this election is a deposed one.

        Args:
            newest: the newest election known.
            wire_version: the newest that the primary of this election speaks.
        """
        if wire_version >= _ELECTION_ID_FIRST_WIRE_VERSION:
            return self._by_election_id() < newest._by_election_id()
        if not self._is_complete or not newest._is_complete:
            return False
        return self._by_set_version() < newest._by_set_version()

    def merged_with(self, election: "Election", wire_version: int) -> "Election":
        """The newest election known after a primary of ``election`` was believed, this one being the newest before."""
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
