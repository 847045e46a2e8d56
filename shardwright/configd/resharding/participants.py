"""The coordinator's commands to donors and recipients.

Each can be repeated, and is repeated for as long as a shard cannot be reached. The coordinator limits the wait by
cancelling it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import trio
from bson.binary import Binary

from shardwright.configd.term.term import Term
from shardwright.daemon.backoff import Backoff
from shardwright.sharding.resharding.participation import Participation
from shardwright.sharding.resharding.states import RecipientState
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.resharding")

Result = TypeVar("Result")

_POLL_MILLIS: Final = 1_000
"""Wait of a recipient for a state before it reports its present one."""

_DONOR: Final = "Donor"
_RECIPIENT: Final = "Recipient"

_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


class Participants:
    """The participants of one operation. Commands raise the CommandError with which one of them refused or failed."""

    def __init__(self, term: Term, participation: Participation) -> None:
        self._term = term
        self._participation = participation

    async def start_donors(self) -> dict[str, dict[str, Any]]:
        """Prepare the donors; returns their replies, with the size of each one's data."""
        donate = {"_shardsvrReshardingDonate": self._told}
        return await self._ask(self._participation.donors, donate, role=_DONOR)

    async def block_writes(self) -> dict[str, dict[str, Any]]:
        """Block writes on the donors; returns their replies, with the time of the last write on each."""
        donate = {"_shardsvrReshardingDonate": self._told, "blockWrites": True}
        return await self._ask(self._participation.donors, donate, role=_DONOR)

    async def receive_until(self, state: RecipientState, **more: object) -> None:
        """Return when all recipients have reached a state; starts recipients that do not have the operation yet."""
        receive = {
            "_shardsvrReshardingReceive": self._told,
            "awaitState": str(state),
            "waitMillis": _POLL_MILLIS,
            **more,
        }

        async def wait(shard_id: str) -> None:
            while not (await self._send(shard_id, "admin", receive, role=_RECIPIENT))["isReached"]:
                logger.debug("A recipient is on its way", shard=shard_id, wanted=str(state))

        await together(self._participation.recipients, wait)

    async def remaining_millis(self) -> list[int] | None:
        """Return each recipient's estimate of its remaining time; None if one has no estimate."""
        ask = {"_shardsvrReshardingOperationTime": str(self._participation.namespace)}
        replies = await self._ask(self._participation.recipients, ask, role=_RECIPIENT)
        times = [reply["remainingMillis"] for reply in replies.values() if "remainingMillis" in reply]
        return times if len(times) == len(replies) else None

    async def hold(self) -> None:
        """Block reads and writes of the collection on all participants, until commit or abort."""
        await self._ask(self._participation.shards, {"_shardsvrReshardingHold": self._told})

    async def commit(self) -> None:
        """Replace the participants' parts of the collection."""
        namespace = self._participation.namespace
        commit = {"_shardsvrCommitReshardCollection": str(namespace), "reshardingUUID": self._id, **self._operation}
        await self._ask(self._participation.shards, commit)

    async def drop_elsewhere(self) -> None:
        """Drop the former collection on other shards, which own none of it but may still have it."""
        namespace = self._participation.namespace
        drop = {"_shardsvrDropCollectionIfUUIDNotMatching": namespace.collection, "expectedCollectionUUID": self._id}
        shards = await self._term.catalog.shards()
        others = [each.id for each in shards if each.id not in self._participation.shards]
        await self._ask(others, {**drop, "writeConcern": _MAJORITY}, db=namespace.db)

    async def abort(self, *, user_canceled: bool) -> None:
        """Remove everything of the operation from all participants that are still shards."""
        known = {each.id for each in await self._term.catalog.shards()}
        abort = {"_shardsvrAbortReshardCollection": self._id, "userCanceled": user_canceled, **self._operation}
        await self._ask([each for each in self._participation.shards if each in known], abort)

    async def refresh(self, shard_ids: Iterable[str]) -> None:
        """Refresh the collection on shards, which ends migrations that are forbidden now."""
        flush = {
            "_flushRoutingTableCacheUpdatesWithWriteConcern": str(self._participation.namespace),
            "syncFromConfig": True,
            "writeConcern": _MAJORITY,
        }
        await self._ask(shard_ids, flush)

    @property
    def _id(self) -> Binary:
        return Binary.from_uuid(self._participation.id)

    @property
    def _told(self) -> dict[str, Any]:
        return self._participation.to_document()

    @property
    def _operation(self) -> dict[str, Any]:
        return {"operation": self._told}

    async def _ask(
        self, shard_ids: Iterable[str], command: Mapping[str, Any], *, db: str = "admin", role: str | None = None
    ) -> dict[str, dict[str, Any]]:
        replies: dict[str, dict[str, Any]] = {}

        async def ask(shard_id: str) -> None:
            replies[shard_id] = await self._send(shard_id, db, command, role=role)

        await together(shard_ids, ask)
        return replies

    async def _send(
        self, shard_id: str, db: str, command: Mapping[str, Any], *, role: str | None = None
    ) -> dict[str, Any]:
        """Return a shard's reply, repeating the command while the shard cannot be reached.

        If ``role`` is given, `_DONOR` or `_RECIPIENT`, an error of the shard ends the operation.
        """
        backoff = Backoff(first_seconds=0.1, seconds_max=2.0)
        while True:
            shard = await self._term.catalog.shard(shard_id)
            try:
                return await self._term.shards.command(shard, db, command)
            except CommandError as error:
                if not _is_transient(error):
                    if role is None:
                        raise
                    context = f"{role} shard {shard_id} reached an unrecoverable error"
                    message = f"{context} :: caused by :: {error.message}"
                    raise CommandError(error.code, message, labels=error.labels, extra=error.extra) from error
                logger.warning(
                    "Could not reach a participant", shard=shard_id, command=next(iter(command)), error=str(error)
                )
            await backoff.pause()


def _is_transient(error: CommandError) -> bool:
    return has_category(error.code, Category.RETRYABLE) or error.code in (
        ErrorCode.FailedToSatisfyReadPreference,
        ErrorCode.LockFailed,
        ErrorCode.WriteConcernFailed,
    )


async def together(shard_ids: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Run something for several shards concurrently; the first CommandError or BackendError cancels the others."""
    failures: list[CommandError | BackendError] = []

    async def run(shard_id: str) -> None:
        try:
            await work(shard_id)
        except (CommandError, BackendError) as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for shard_id in shard_ids:
            nursery.start_soon(run, shard_id)
    for failure in failures:
        raise failure
