"""One run of a replication: preflight, copy and follow at once, checkpoints, and the requests of users."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson import decode
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.copying import WORKERS, Copier, planned_ranges
from shardwright.sync.ddl import Catalog
from shardwright.sync.ends import HISTORY_LOST, End, repeated
from shardwright.sync.following import Follower
from shardwright.sync.plan import Deployment, Plan, planned
from shardwright.sync.replication import Replication
from shardwright.sync.states import State, Step, after
from shardwright.sync.store import SYNC, Store
from shardwright.sync.verifying import Report, verified
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

CHECKPOINT_SECONDS: Final = 5.0
CATALOG_SECONDS: Final = 5.0
LAG_MAY_COMMIT: Final = 30

_log = get_logger("sync.session")


class RefusedError(Exception):
    """The preflight has found what cannot be carried; nothing was written.

    Attributes:
        plan: with the reasons.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__("\n".join(plan.refusals))
        self.plan = plan


class CommitError(Exception):
    """The target cannot take over."""


@dataclass(frozen=True)
class Options:
    """How a replication runs.

    Attributes:
        merges: whether documents that the target has already are allowed; it is made equal the source.
        source_writes: whether checkpoints are recorded at the source, too.
        workers: how many ranges are copied at a time.
        blocks_writes: whether a commit blocks the writes of users at the source.
    """

    merges: bool = False
    source_writes: bool = True
    workers: int = WORKERS
    blocks_writes: bool = True


@dataclass
class Outcome:
    """What a commit has measured.

    Attributes:
        pause_seconds: from before writes were blocked until the target had everything.
        verification: the comparison before it.
    """

    pause_seconds: float = 0.0
    verification: Report | None = None


@dataclass
class _Parts:
    store: Store
    writer: Writer
    catalog: Catalog
    copier: Copier
    follower: Follower
    start: dict[str, Any] = field(default_factory=dict)


class Sync:
    """A replication in this process.

    Attributes:
        replication: the request.
        state: as in mongosync.
        notes: what is not carried, from the preflight.
    """

    def __init__(
        self, replication: Replication, options: Options, on_running: Callable[[], None] = lambda: None
    ) -> None:
        self.replication = replication
        self.state = State.IDLE
        self.notes: tuple[str, ...] = ()
        self.outcome = Outcome()
        self._options = options
        self._on_running = on_running
        self._source, self._target = End("source", replication.source), End("target", replication.target)
        self._parts: _Parts | None = None
        self._store: Store | None = None
        self._source_now = NO_TIME
        self._copied = asyncio.Event()
        self._ended = asyncio.Event()
        self._commit_asked = asyncio.Event()

    async def close(self) -> None:
        """Close all connections."""
        await self._source.close()
        await self._target.close()

    async def progress_elsewhere(self) -> Mapping[str, Any]:
        """The progress that the process which has the lease has published."""
        store = Store(self.replication.id, self._source, self._target, source_writes=False)
        return await store.progress_of_owner()

    async def run(self, *, continuous: bool) -> None:
        """Replicate until everything is there, or until the end of a commit or an abort if ``continuous``.

        Raises:
            LeaseHeldError: another process runs this replication.
            LeaseLostError: another process has taken over.
            RefusedError: something cannot be carried.
        """
        store = Store(self.replication.id, self._source, self._target, source_writes=self._options.source_writes)
        await repeated(store.acquire)
        self._store = store
        self.state = after(self.state, Step.START)
        self._on_running()
        try:
            is_lost = False
            while not self._ended.is_set():
                try:
                    # The lease is kept from here on, however long the plan takes.
                    await self._run(store, continuous=continuous, is_lost=is_lost)
                except BaseExceptionGroup as group:
                    error = _first(group)
                    if not isinstance(error, OperationFailure) or error.code not in HISTORY_LOST:
                        raise error from group
                    _log.warning("The source has lost the history that was still needed", error=str(error))
                    is_lost = True
        finally:
            if self.state != State.COMMITTED:
                self.state = State.IDLE
            await store.release()

    async def _run(self, store: Store, *, continuous: bool, is_lost: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(store.keep_lease(self.progress))]
            parts = await self._prepare(store, is_lost=is_lost)
            self._parts = parts
            running += [
                tasks.create_task(parts.follower.read(parts.start)),
                tasks.create_task(parts.follower.apply()),
                tasks.create_task(self._record_for_ever(parts)),
                tasks.create_task(self._compare_catalogs_for_ever(parts)),
            ]
            try:
                await self._copy(parts)
                if continuous:
                    await self._wait_commit(parts)
                else:
                    await self._catch_up(parts)
                self._ended.set()
            finally:
                for task in running:
                    task.cancel()

    async def _prepare(self, store: Store, *, is_lost: bool) -> _Parts:
        now = await repeated(self._source.now)
        chosen = self.replication.filter
        source = await repeated(lambda: self._source.deployment(chosen))
        target = await repeated(lambda: self._target.deployment(chosen))
        position = await repeated(store.position)
        writer = Writer(self._source, self._target, store)
        catalog = Catalog(self.replication, self._source, self._target, store, writer, [source, target])
        if not position.get("planned"):
            start, ranges = await self._plan(store, writer, catalog, source, target, now)
        else:
            start, ranges = await self._resume(store, catalog, source, position, now, is_lost=is_lost)
        writer.note_read(now)
        copier = Copier(self._source, self._target, store, writer, ranges, workers=self._options.workers)
        follower = Follower(self._source, store, writer, catalog, copier, chosen, is_sharded=source.is_sharded)
        return _Parts(store, writer, catalog, copier, follower, start)

    async def _plan(
        self, store: Store, writer: Writer, catalog: Catalog, source: Deployment, target: Deployment, now: Timestamp
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Compare both ends, and create the collections; nothing is written before it is certain that all can be."""
        counts = {each: await self._has_documents(each) for each in target.collections if each in source.collections}
        plan = planned(self.replication, source, target, merges=self._options.merges, counts=counts)
        if plan.refusals:
            raise RefusedError(plan)
        self.notes = plan.notes
        ranges = []
        for each in sorted(plan.collections, key=lambda each: each.kind == "view"):
            ours = source.collections[each.namespace]
            if each.namespace in target.collections:
                writer.merged.add(each.namespace)
            catalog.know(ours)
            await catalog.create(each)
            if ours.kind == "collection":
                compares = bool(counts.get(each.namespace))
                ranges += await planned_ranges(self._source, each.namespace, compares=compares)
        await store.replace_ranges(ranges)
        fields = {"planned": True, "start": now, "collections": catalog.stored(), "merged": sorted(writer.merged)}
        await store.fenced(SYNC, {"_id": store.id}, fields)
        await store.record(now, copied=False, counters=writer.counters)
        return {"start_at_operation_time": now}, await store.ranges()

    async def _resume(
        self,
        store: Store,
        catalog: Catalog,
        source: Deployment,
        position: Mapping[str, Any],
        now: Timestamp,
        *,
        is_lost: bool,
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Continue from where both ends agree."""
        agreed = await repeated(store.agreement)
        catalog.restore(position["collections"])
        is_known = not is_lost and (agreed.is_exact or "history" not in position)
        _log.info("A replication is resumed", how="the oplog was lost" if is_lost else agreed.reason)
        if is_known:
            token = position.get("token")
            start: dict[str, Any] = (
                {"start_at_operation_time": position["start"]} if token is None else {"resume_after": decode(token)}
            )
            return start, await store.ranges()
        for each in source.collections.values():
            catalog.know(each)
            await catalog.create(catalog.planned(each))
        ranges = []
        for each in source.collections.values():
            if each.kind == "collection":
                ranges += await planned_ranges(self._source, each.namespace, compares=True)
        await store.replace_ranges(ranges)
        began = now if is_lost or agreed.last is None else agreed.last
        fields = {"start": began, "token": None, "collections": catalog.stored()}
        await store.fenced(SYNC, {"_id": store.id}, fields)
        return {"start_at_operation_time": began}, await store.ranges()

    async def _has_documents(self, namespace: str) -> int:
        return 0 if await self._target.collection(namespace).find_one({}, {"_id": 1}) is None else 1

    async def _copy(self, parts: _Parts) -> None:
        while not parts.copier.is_done:
            await parts.copier.run()
        parts.catalog.has_indexes = True
        await self._wait_consistent(parts)
        await parts.catalog.match_all()
        async with parts.writer.lock:
            await parts.writer.retry_failures()
        self._copied.set()
        await self._record(parts)

    async def _wait_consistent(self, parts: _Parts) -> None:
        """Wait until all changes are applied that the copy may have seen."""
        await self._source.advance()
        async with parts.copier.progressed:
            await parts.copier.progressed.wait_for(lambda: parts.follower.applied >= parts.writer.read_until)

    async def _catch_up(self, parts: _Parts) -> None:
        """Apply all changes that the source has had so far."""
        await parts.follower.wait_applied(await self._source.advance())
        async with parts.writer.lock:
            await parts.writer.retry_failures()
        await self._record(parts)

    async def _record_for_ever(self, parts: _Parts) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            await self._record(parts)

    async def _record(self, parts: _Parts) -> None:
        applied, token = parts.follower.applied, parts.follower.token
        if applied == NO_TIME or token is None:
            return
        counters = dict(parts.writer.counters)
        self._source_now = await repeated(self._source.now)
        if not await parts.store.record(applied, copied=self._copied.is_set(), counters=counters):
            async with parts.writer.lock:
                idle = {"token": parts.follower.token, "applied": parts.follower.applied}
                await parts.store.fenced(SYNC, {"_id": parts.store.id}, idle)

    async def _compare_catalogs_for_ever(self, parts: _Parts) -> None:
        while True:
            await asyncio.sleep(CATALOG_SECONDS)
            if self._copied.is_set():
                await parts.catalog.match_all()

    def pause(self) -> None:
        """Stop reading and writing documents.

        Raises:
            StateError: it is not running.
        """
        self.state = after(self.state, Step.PAUSE)
        if self._parts is not None:
            self._parts.copier.allowed.clear()
            self._parts.follower.allowed.clear()

    async def resume(self, *, retry_failures: bool = False) -> None:
        """Continue after a pause.

        Raises:
            StateError: it is not paused.
        """
        self.state = after(self.state, Step.RESUME)
        if self._parts is not None:
            if retry_failures:
                async with self._parts.writer.lock:
                    await self._parts.writer.retry_failures()
            self._parts.copier.allowed.set()
            self._parts.follower.allowed.set()

    def commit(self) -> None:
        """Begin to hand over to the target.

        Raises:
            StateError: it is not running.
            CommitError: the copy is not complete, or the lag is too long.
        """
        if self.state == State.RUNNING and not self.can_commit:
            raise CommitError("the target is not close enough to the source to commit")
        self.state = after(self.state, Step.COMMIT)
        self._commit_asked.set()

    def abort(self) -> None:
        """End; the checkpoints stay, so that it can be resumed."""
        self._ended.set()
        self._commit_asked.set()

    @property
    def can_commit(self) -> bool:
        """Whether the copy is complete and the lag short."""
        return self._copied.is_set() and self.lag_seconds <= LAG_MAY_COMMIT

    @property
    def lag_seconds(self) -> int:
        """Seconds of the source's clock between what is applied and what the source has."""
        applied = NO_TIME if self._parts is None else self._parts.follower.applied
        return 0 if applied == NO_TIME else max(0, self._source_now.time - applied.time)

    async def failures(self) -> list[dict[str, Any]]:
        """The documents that the target has refused."""
        return [] if self._store is None else await self._store.failures()

    async def _wait_commit(self, parts: _Parts) -> None:
        while True:
            await self._commit_asked.wait()
            self._commit_asked.clear()
            if self._ended.is_set():
                return
            try:
                await self._commit(parts)
            except CommitError as error:
                _log.error("The commit has failed", error=str(error))
                self.state = after(self.state, Step.COMMIT_FAILED)
            else:
                self.state = after(self.state, Step.COMMITTED)
                return

    async def _commit(self, parts: _Parts) -> None:
        await self._catch_up(parts)
        self.outcome.verification = report = await self.verify()
        if not report.is_equal:
            raise CommitError("source and target differ: see the verification")
        if left := len(await parts.store.failures()):
            raise CommitError(f"{left} documents were refused: see `shardwright sync failures`")
        began = time.monotonic()
        if self._options.blocks_writes:
            await self._source.command("admin", {"setUserWriteBlockMode": 1, "global": True})
        await parts.follower.wait_applied(await self._source.advance())
        self.outcome.pause_seconds = time.monotonic() - began
        parts.catalog.keeps_expiry = True
        await parts.catalog.match_all()

    async def verify(self) -> Report:
        """Compare both ends at a moment in which the target was a state of the source."""
        assert self._parts is not None
        parts = self._parts

        def moment() -> tuple[Timestamp, Timestamp] | None:
            return parts.follower.consistent

        namespaces = sorted({*parts.catalog.namespaces.values()})
        return await verified(self._source, self._target, namespaces, moment)

    def progress(self) -> dict[str, Any]:
        """The progress, with the names of mongosync."""
        parts = self._parts
        found: dict[str, Any] = {
            "mongosyncID": self.replication.id,
            "state": str(self.state),
            "canCommit": self.state == State.RUNNING and self.can_commit,
            "canWrite": self.state == State.COMMITTED,
            "info": None
            if parts is None
            else "change event application"
            if self._copied.is_set()
            else "collection copy",
            "lagTimeSeconds": self.lag_seconds,
        }
        if parts is None:
            return found
        ranges = parts.copier.ranges
        found |= {
            "collectionCopy": {
                "estimatedTotalBytes": sum(max(each["estimated_bytes"], each["bytes"]) for each in ranges),
                "estimatedCopiedBytes": sum(each["bytes"] for each in ranges),
                "estimatedTotalDocuments": sum(max(each["estimated_documents"], each["documents"]) for each in ranges),
                "copiedDocuments": sum(each["documents"] for each in ranges),
            },
            "eventsApplied": parts.follower.events,
            "lastConsistentTime": None,
            "counters": dict(parts.writer.counters),
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
