"""One run of a replication: copy and follow at once, checkpoints, and the requests of users."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from pymongo.errors import OperationFailure, PyMongoError

from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.ddl import INDEXES_MAX
from shardwright.sync.ends import HISTORY_LOST, End, check_cancellation, repeated
from shardwright.sync.handover import (
    CommitError,
    Outcome,
    acquire_blocked,
    block_writes,
    changed_since,
    expiring,
    hand_over,
    reopen,
    stop_expiry,
    turn_around,
)
from shardwright.sync.preparing import Options, Parts, check_deployments, prepared
from shardwright.sync.replication import (
    COPY_PHASE,
    FOLLOW_PHASE,
    Rates,
    Replication,
    State,
    Step,
    copy_progress,
    place,
    rates_progress,
    shown_error,
    shown_notes,
    state_after,
)
from shardwright.sync.rounds import Report
from shardwright.sync.store import SYNC, LeaseHeldError, LeaseLostError, Store
from shardwright.sync.verification import ids_of
from shardwright.wire.logger import get_logger

CHECKPOINT_SECONDS: Final = 5.0
CATALOG_SECONDS: Final = 5.0
SOURCE_SECONDS: Final = 1.0
LAG_MAY_COMMIT: Final = 30

_log = get_logger("sync.session")


class Sync:
    """A replication in this process.

    Requests of users raise `StateError` if they are not possible in the present state, and `CommitError` if a condition
    for them is not met.

    Attributes:
        id: of the replication, the same in both directions.
        replication: the request in its present direction.
        notes: things that are not carried, from the preflight.
        error: the reason of the last failed commit.
    """

    def __init__(
        self, replication: Replication, options: Options, on_running: Callable[[], None] = lambda: None
    ) -> None:
        self.id = replication.id
        self.replication = replication
        self.state = State.IDLE
        self.notes: tuple[str, ...] = ()
        self.error: str | None = None
        self.outcome = Outcome()
        self._options = options
        self._on_running = on_running
        self._source, self._target = End("source", replication.source), End("target", replication.target)
        self._parts: Parts | None = None
        self._store: Store | None = None
        self._source_now = NO_TIME
        self._rates = Rates()
        self._copied = asyncio.Event()
        self._ended = asyncio.Event()
        self._commit_asked = asyncio.Event()
        self._reverse_asked = asyncio.Event()
        self._comparing: set[asyncio.Task[Report]] = set()

    async def close(self) -> None:
        """Close all connections."""
        await self._source.close()
        await self._target.close()

    async def progress_elsewhere(self) -> Mapping[str, Any]:
        """Return the progress published by the process that has the lease."""
        return await self._new_store().progress_of_owner()

    async def run(self, *, continuous: bool) -> None:
        """Replicate until the ends are equal, or until the end of a commit or an abort if ``continuous``.

        A reversible replication stays after a commit, until it is reversed or aborted.

        Raises:
            LeaseHeldError: another process runs this replication.
            RefusedError: something cannot be carried.
        """
        await check_deployments(self._source, self._target)
        self._store = await self._acquired()
        self.state = state_after(self.state, Step.START)
        self._on_running()
        try:
            is_lost = False
            while not self._ended.is_set():
                try:
                    # The lease is kept from here on, however long the plan takes.
                    await self._run(self._store, continuous=continuous, is_lost=is_lost)
                    is_lost = False
                    if self.state == State.REVERSING:
                        await self._turn_around(self._store)
                except BaseExceptionGroup as group:
                    error = _first(group)
                    is_lost = isinstance(error, OperationFailure) and error.code in HISTORY_LOST
                    if is_lost:
                        _log.warning("The source has lost the history that was still needed", error=str(error))
                    elif isinstance(error, LeaseLostError):
                        await self._take_again(self._store, error)
                    else:
                        raise error from group
                    self._fall_back(error)
        finally:
            if self.state != State.COMMITTED:
                self.state = State.IDLE
            await self._store.release()

    async def _acquired(self) -> Store:
        """Acquire the lease of the direction that is not handed over, and return its checkpoints."""
        while True:
            store = self._new_store()
            if not (await repeated(store.position)).get("handed_over"):
                await acquire_blocked(store, self._target)
                # Another process may have turned around in the meantime.
                if not (await repeated(store.position)).get("handed_over"):
                    return store
                await store.release()
            self._swap()

    async def _take_again(self, store: Store, error: LeaseLostError) -> None:
        """Acquire a lease again that has expired, for example while the target was away."""
        try:
            await repeated(store.acquire)
        except LeaseHeldError:
            raise error from None
        _log.warning("The lease had expired and is taken again", error=str(error))
        if (await repeated(store.position)).get("handed_over"):
            await store.release()
            self._store = await self._acquired()
        self._on_running()

    def _fall_back(self, error: BaseException) -> None:
        """Begin from the checkpoint again; a commit in progress has failed."""
        self._copied.clear()
        if self.state == State.COMMITTING:
            self.error = f"the commit was interrupted: {error}"
            self.state = state_after(self.state, Step.COMMIT_FAILED)

    def _new_store(self) -> Store:
        """Return the checkpoints of the present direction."""
        return Store(self.replication.id, self._source, self._target, source_writes=self._options.source_writes)

    def _swap(self) -> None:
        self.replication = self.replication.swapped()
        self._source, self._target = self._target, self._source
        self._source.name, self._target.name = "source", "target"

    async def _run(self, store: Store, *, continuous: bool, is_lost: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(store.keep_lease(self.progress))]
            try:
                position = await repeated(store.position)
                if position.get("committed"):
                    if position.get("turned") and self._options.blocks_writes:
                        # The commit may have been interrupted before it lifted the block.
                        await block_writes(self._target, is_blocked=False)
                    self.state, self.error = State.COMMITTED, None
                else:
                    if position.get("blocked"):
                        _log.warning("The source is opened for writes: a commit was interrupted")
                        await reopen(store, self._source)
                        self.error = self.error or "a commit was interrupted"
                    await self._until_aborted(self._replicate(store, continuous=continuous, is_lost=is_lost))
                if self.state == State.COMMITTED and self._options.reversible and not self._ended.is_set():
                    if not self._options.blocks_writes:
                        running.append(tasks.create_task(self._stop_expiry(store)))
                    await self._reverse_asked.wait()
                if self.state != State.REVERSING:
                    self._ended.set()
            finally:
                for task in running:
                    task.cancel()

    async def _stop_expiry(self, ended: Store) -> None:
        """Keep the documents of the old source for a reversal; no block stops its TTL monitor."""
        try:
            names = (await repeated(ended.position))["committed"]["collections"].values()
            await stop_expiry(self._source, await expiring(self._source, names))
        except* PyMongoError as errors:
            _log.warning("Documents may expire at the old source", error=str(_first(errors)))

    async def _until_aborted(self, replicating: Coroutine[Any, Any, None]) -> None:
        """Replicate until the end, or until an abort outside a commit."""
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(replicating)
            aborted = tasks.create_task(self._ended.wait())
            await asyncio.wait((running, aborted), return_when=asyncio.FIRST_COMPLETED)
            if self.state == State.COMMITTING:
                await asyncio.wait((running,))
            running.cancel()
            aborted.cancel()

    async def _replicate(self, store: Store, *, continuous: bool, is_lost: bool) -> None:
        parts = await prepared(self.replication, self._options, self._source, self._target, store, is_lost=is_lost)
        self._copied.clear()
        self._parts, self.notes = parts, parts.notes or self.notes
        if self.state == State.PAUSED:
            parts.copier.allowed.clear()
            parts.follower.allowed.clear()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(parts.follower.read(parts.start)),
                tasks.create_task(parts.follower.apply()),
                tasks.create_task(parts.catalog.build_for_ever()),
                tasks.create_task(self._record_for_ever(parts)),
                tasks.create_task(self._watch_source(parts)),
                tasks.create_task(self._compare_catalogs_for_ever(parts)),
            ]
            try:
                await self._copy(parts)
                running.append(tasks.create_task(parts.copier.run_added()))
                running.append(tasks.create_task(parts.verifier.run()))
                if continuous:
                    await self._wait_commit(parts)
                else:
                    await self._catch_up(parts)
                    self.outcome.differs = not (await parts.verifier.complete()).is_equal
            finally:
                for task in (*running, *self._comparing):
                    task.cancel()

    async def _turn_around(self, ended: Store) -> None:
        """Swap the roles of both ends."""
        committed = (await repeated(ended.position))["committed"]
        self._swap()
        begun = self._new_store()
        # If the next step lifts the block, documents can expire at once. So the indexes are read before it.
        commands = await expiring(self._target, committed["collections"].values())
        await acquire_blocked(begun, self._target)
        await stop_expiry(self._target, commands)
        ranges = await changed_since(self._target, committed)
        hello = await repeated(lambda: self._source.command("admin", {"hello": 1}))
        identity = await repeated(lambda: self._source.identity(is_sharded=hello.get("msg") == "isdbgrid"))
        await turn_around(ended, begun, committed, identity, ranges)
        self._store, self._parts, self.outcome = begun, None, Outcome()
        for each in (self._copied, self._commit_asked, self._reverse_asked):
            each.clear()
        self.state = state_after(self.state, Step.REVERSED)

    async def _copy(self, parts: Parts) -> None:
        while not parts.copier.is_done:
            await parts.copier.run()
        parts.catalog.has_indexes = True
        await self._wait_consistent(parts)
        await parts.catalog.match_all()
        await self._match_users(parts)
        async with parts.writer.lock:
            await parts.writer.retry_failures()
        self._copied.set()
        await self._record(parts)

    async def _wait_consistent(self, parts: Parts) -> None:
        """Wait until all changes that the copy may have seen are applied."""
        await self._source.advance()
        async with parts.copier.progressed:
            await parts.copier.progressed.wait_for(lambda: parts.follower.applied >= parts.writer.read_until)

    async def _catch_up(self, parts: Parts) -> None:
        """Apply all changes of the source so far."""
        await parts.follower.wait_applied(await self._source.advance())
        await parts.copier.wait_done()
        await parts.catalog.wait_built()
        async with parts.writer.lock:
            await parts.writer.retry_failures()
        await self._record(parts)

    async def _record_for_ever(self, parts: Parts) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            if self.state != State.COMMITTING:
                await self._record(parts)
            check_cancellation()

    async def _record(self, parts: Parts) -> None:
        applied, token = parts.follower.applied, parts.follower.token
        if applied == NO_TIME or token is None:
            return
        counters = dict(parts.writer.counters)
        if not await parts.store.record(applied, copied=self._copied.is_set(), counters=counters):
            async with parts.writer.lock:
                idle = {"token": parts.follower.token, "applied": parts.follower.applied}
                parts.follower.note_idle(await parts.store.fenced(SYNC, {"_id": parts.store.id}, idle))

    async def _watch_source(self, parts: Parts) -> None:
        while True:
            self._source_now = await repeated(self._source.now)
            if parts.follower.moments.is_open:
                # Without writes, the stream of an idle source stays before the end of its last transactions.
                await self._source.advance()
            copied = copy_progress(parts.copier.ranges)
            counts = {
                "documents": copied["copiedDocuments"],
                "bytes": copied["estimatedCopiedBytes"],
                "events": parts.follower.events,
            }
            self._rates.note(time.monotonic(), counts)
            await asyncio.sleep(SOURCE_SECONDS)

    async def _compare_catalogs_for_ever(self, parts: Parts) -> None:
        while True:
            await asyncio.sleep(CATALOG_SECONDS)
            if self._copied.is_set():
                await parts.catalog.match_all(INDEXES_MAX)
                await self._match_users(parts)
            check_cancellation()

    async def _match_users(self, parts: Parts) -> None:
        if parts.users is not None:
            await parts.users.match(
                lambda carried: parts.store.fenced(SYNC, {"_id": parts.store.id}, {"accounts": carried})
            )

    def pause(self) -> None:
        """Stop reading and writing documents."""
        self.state = state_after(self.state, Step.PAUSE)
        if self._parts is not None:
            self._parts.copier.allowed.clear()
            self._parts.follower.allowed.clear()

    async def resume(self, *, retry_failures: bool = False) -> None:
        """Continue after a pause."""
        self.state = state_after(self.state, Step.RESUME)
        if self._parts is None:
            return
        try:
            if retry_failures:
                async with self._parts.writer.lock:
                    await self._parts.writer.retry_failures()
                    for namespace, ids in ids_of(self._parts.verifier.report):
                        await self._parts.writer.reconcile(namespace, ids)
        finally:
            if self.state != State.PAUSED:  # it may have been paused again during the retry
                self._parts.copier.allowed.set()
                self._parts.follower.allowed.set()

    def commit(self) -> None:
        """Begin to hand over to the target; the copy must be complete and the lag short."""
        if self.state == State.RUNNING and not self.can_commit:
            raise CommitError("the target is not close enough to the source to commit")
        self.state, self.error = state_after(self.state, Step.COMMIT), None
        self._commit_asked.set()

    def reverse(self) -> None:
        """Begin to follow in the opposite direction, after a commit of a reversible replication."""
        if not self._options.reversible:
            raise CommitError("the replication was not started with --reversible")
        self.state = state_after(self.state, Step.REVERSE)
        self._reverse_asked.set()

    def abort(self) -> None:
        """End the run; the checkpoints stay, so that it can be resumed."""
        self._ended.set()
        self._commit_asked.set()
        self._reverse_asked.set()

    @property
    def can_commit(self) -> bool:
        """Whether the copy is complete and the lag short."""
        return self._copied.is_set() and self.lag_seconds <= LAG_MAY_COMMIT

    @property
    def lag_seconds(self) -> int:
        """Seconds of the source's clock between the newest applied change and the source's present time."""
        applied = NO_TIME if self._parts is None else self._parts.follower.applied
        return 0 if applied == NO_TIME else max(0, self._source_now.time - applied.time)

    async def failures(self) -> tuple[list[dict[str, Any]], int]:
        """Return the first documents that the target has refused, and the number of all of them."""
        if self._store is None:
            return [], 0
        return await self._store.failures(), await self._store.count_failures()

    async def _wait_commit(self, parts: Parts) -> None:
        while True:
            await self._commit_asked.wait()
            self._commit_asked.clear()
            if self._ended.is_set():
                return
            try:
                await self._commit(parts)
            except (CommitError, NoMomentError) as error:
                _log.error("The commit has failed", error=str(error))
                self.error = str(error)
                self.state = state_after(self.state, Step.COMMIT_FAILED)
            else:
                self.state = state_after(self.state, Step.COMMITTED)
                return

    async def _commit(self, parts: Parts) -> None:
        await self._catch_up(parts)
        if not (await parts.verifier.complete()).is_equal:
            raise CommitError("source and target differ: see the verification")
        if left := await parts.store.count_failures():
            raise CommitError(f"{left} documents were refused: see `shardwright sync failures`")
        await self._match_users(parts)
        pause = await hand_over(parts, self._source, self._target, blocks_writes=self._options.blocks_writes)
        self.outcome.pause_seconds = pause

    async def verify(self) -> Report:
        """Compare everything again, at moments in which the target equalled a state of the source.

        The copy must be complete, and the replication running.
        """
        if self._parts is None or not self._copied.is_set() or self.state != State.RUNNING:
            raise CommitError("nothing can be compared before the copy is complete, or while it does not run")
        comparing = asyncio.create_task(self._parts.verifier.again())
        self._comparing.add(comparing)
        try:
            await asyncio.wait((comparing,))
        finally:
            comparing.cancel()
            self._comparing.remove(comparing)
        if comparing.cancelled():
            raise CommitError("the comparison has ended with its run of the replication: verify again")
        return comparing.result()

    def progress(self) -> dict[str, Any]:
        """Return the progress, with the names of mongosync."""
        parts = self._parts
        refused = {} if parts is None else parts.catalog.refused
        found: dict[str, Any] = {
            "mongosyncID": self.id,
            "state": str(self.state),
            "canCommit": self.state == State.RUNNING and self.can_commit,
            "canWrite": self.state == State.COMMITTED,
            "canReverse": self.state == State.COMMITTED and self._options.reversible,
            "directionMapping": {
                "Source": place(self.replication.source),
                "Destination": place(self.replication.target),
            },
            "info": None if parts is None else FOLLOW_PHASE if self._copied.is_set() else COPY_PHASE,
            "lagTimeSeconds": self.lag_seconds,
            "error": shown_error(self.error),
            # The preflight's notes have been shown since the start, so they come last.
            "notes": shown_notes([*(f"{name} {reason}" for name, reason in sorted(refused.items())), *self.notes]),
        }
        if parts is None:
            return found
        found |= {
            "collectionCopy": (copied := copy_progress(parts.copier.ranges)),
            "rates": rates_progress(self._rates, copied, is_copied=self._copied.is_set()),
            "eventsApplied": parts.follower.events,
            "lastConsistentTime": None,
            "counters": dict(parts.writer.counters),
            "verification": parts.verifier.progress(self.lag_seconds),
        }
        if parts.follower.consistent is not None:
            source, target = parts.follower.consistent
            found["lastConsistentTime"] = {"source": source, "target": target}
        if self.state == State.COMMITTED:
            found["pauseSeconds"] = round(self.outcome.pause_seconds, 3)
        return found


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
