"""The migrations of one shard daemon, in either direction."""

from typing import TYPE_CHECKING, Any

import trio

from shardd.migration.registry import MigrationRegistry
from shardd.shard import Shard

if TYPE_CHECKING:
    from shardd.migration.donor.migration import DonorMigration
    from shardd.migration.recipient.migration import RecipientMigration


class Migrations:
    """What moves from this shard to another, or from another to this one.

    Attributes:
        registry: lets one migration be under way at a time.
        donor: the migration in which this shard gives a range.
        recipient: the migration in which this shard receives one.
    """

    def __init__(self, shard: Shard) -> None:
        self.registry = MigrationRegistry()
        self.donor: DonorMigration | None = None
        self.recipient: RecipientMigration | None = None
        self._shard = shard
        self._nursery: trio.Nursery | None = None

    async def begin_term(self, nursery: trio.Nursery) -> None:
        """Recover what the last primary has left under way; its critical sections are on when this returns.

        Args:
            nursery: of the term, in which migrations run until step-down.
        """
        self._nursery = nursery

    def end_term(self) -> None:
        """The migrations have been cancelled with their nursery; the next primary goes on with them."""
        self._nursery = None

    async def abort_all(self, namespace: str, reason: str) -> None:
        """Abort the migration of a collection unless it commits already, and wait for its end in either case."""

    def progress(self) -> list[dict[str, Any]]:
        """What ``currentOp`` shows."""
        return []
