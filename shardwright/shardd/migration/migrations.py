"""The migrations of one shard daemon, in either direction."""

from typing import TYPE_CHECKING, Any

import trio

from shardwright.shardd.context.shard import Shard
from shardwright.shardd.migration.client_load import ClientLoad
from shardwright.shardd.migration.donor.donations import Donations
from shardwright.shardd.migration.donor.progress import DonorMetrics, donation_operation
from shardwright.shardd.migration.parameters import MigrationParameters
from shardwright.shardd.migration.recipient.operation import recipient_operation
from shardwright.shardd.migration.recipient.service import RecipientService
from shardwright.shardd.migration.registry import MigrationRegistry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.migration.donor.migration import DonorMigration
    from shardwright.shardd.migration.donor.request import MoveRangeRequest


class Migrations:
    """What moves from this shard to another, or from another to this one.

    Attributes:
        registry: lets one migration be under way at a time.
        parameters: what can be set about them.
        donor: the migration in which this shard gives a range, from where it has been checked and persisted.
        recipient: receives ranges.
        donor_metrics: counts what comes of donations.
        client_load: how busy clients keep this daemon.
    """

    def __init__(self, shard: Shard) -> None:
        self.registry = MigrationRegistry()
        self.parameters = MigrationParameters()
        self.donor: DonorMigration | None = None
        self.recipient = RecipientService(shard, self.registry)
        self.donor_metrics = DonorMetrics(shard.metrics, lambda: self.donor)
        self.client_load = ClientLoad(shard.metrics.operations)
        self._shard = shard
        self._donations: Donations | None = None

    async def begin_term(self, nursery: trio.Nursery) -> None:
        """Recover what the last primary has left under way; its critical sections are on when this returns.

        Nothing here may wait for another server, nor for what operations wait for.

        Args:
            nursery: of the term, in which migrations run until step-down.

        Raises:
            CommandError: it could not be read what there is.
            BackendError: mongod does not answer.
        """
        if self._donations is not None:
            return
        donations = Donations(self._shard, nursery)
        unfinished = await donations.load()
        await self.recipient.begin_term(nursery)
        await donations.recover(unfinished)
        self._donations = donations

    def end_term(self) -> None:
        """The migrations have been cancelled with their nursery; the next primary goes on with them."""
        self._donations = None
        self.recipient.end_term()

    async def move_range(self, request: "MoveRangeRequest") -> None:
        """Give a range to another shard, or wait for the end of the same migration if it is under way.

        A new primary finds out first which migrations are under way.

        Raises:
            CommandError: it failed; NotWritablePrimary; ConflictingOperationInProgress, another migration is under way.
        """
        await self._shard.recovery_gate.wait_open()
        if self._donations is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
        donation = self._donations.start(request)
        await donation.wait_result()
        if request.wait_for_delete and donation.migration_id is not None:
            await self._shard.range_deletions.wait_deleted(donation.migration_id)

    async def abort_all(self, namespace: str, reason: str) -> None:
        """Abort the migration of a collection in which this shard is donor, and wait for its end.

        One that has come to its commit is not aborted; it is only waited for.
        """
        donation = self.registry.donation
        if donation is not None and donation.key.namespace == namespace:
            donation.abort(CommandError(ErrorCode.ConflictingOperationInProgress, reason))
            await donation.ended.wait()

    async def end_all(self, namespace: str, reason: str) -> None:
        """End the migration of a collection in either direction; nothing of it is written when this returns.

        Raises:
            CommandError: ConflictingOperationInProgress, what is received waits for the donor's decision; mongod
                refuses.
            BackendError: mongod does not answer.
        """
        await self.abort_all(namespace, reason)
        await self.recipient.end(namespace)
        # A transaction of it that was cut off may be under way in mongod still.
        async with self._shard.reserved_sessions.session():
            pass

    def kill(self, opid: int) -> bool:
        """Abort the migration that `progress` shows under a number; returns whether there is one."""
        donation, receiving = self.registry.donation, self.recipient.active
        if donation is not None and donation.opid == opid:
            donation.abort(CommandError(ErrorCode.Interrupted, "operation was interrupted"))
            return True
        if receiving is not None and receiving.opid == opid:
            receiving.kill()
            return True
        return False

    def progress(self) -> list[dict[str, Any]]:
        """The migration under way, in either direction, as ``currentOp`` shows it."""
        donation, receiving = self.registry.donation, self.recipient.active
        address = self._shard.options.address
        if donation is not None:
            return [donation_operation(donation, self.donor, address)]
        return [] if receiving is None else [recipient_operation(receiving, address)]
