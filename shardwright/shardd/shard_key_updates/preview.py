"""What an update would do to one document. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preview:
    """One document before and after an update. Without ``before`` it would be inserted; without both, none matched."""

    before: bytes | None
    after: bytes | None
