"""Verification: rounds of comparisons, by ``sync verify`` or for as long as a replication follows its source.

Comparisons raise `comparing.NoMomentError` if there is no moment at which both ends can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

from bson import decode
from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.sync.changes import Value
from shardwright.sync.comparing import Moment, Moments, NoMomentError, ids_compared, piece_compared, rechecked
from shardwright.sync.ddl import Catalog
from shardwright.sync.ends import HISTORY_LOST, End, check_cancellation, repeated
from shardwright.sync.following import Follower
from shardwright.sync.plan import Collection, Deployment, at_target, shape_problems
from shardwright.sync.replication import Replication, place
from shardwright.sync.rounds import Compared, Report, Round, Touched
from shardwright.sync.store import LEASES, VERIFICATION, Store
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

_log = get_logger("sync.verification")

SHAPE_RECHECKS: Final = 3
SHAPE_PAUSE_SECONDS: Final = 3.0

Shape = Callable[[str], Awaitable[list[str]]]
"""Returns the differences of a collection outside its documents."""

Passed = Mapping[str, Compared]
"""The findings for a collection once it is completely compared; empty before that."""

TICK_SECONDS: Final = 1.0
ROUND_PAUSE_SECONDS: Final = 10.0
SAVE_SECONDS: Final = 1.0
"""Minimum time between two saved positions, which have the findings of all collections."""
SAVE_REST: Final = 19
"""The same as a multiple of the duration of a save, if that is longer."""
REST: Final = 9
"""Length of the rest after a piece, as a multiple of its duration, once a round is complete."""


async def _advance(
    current: Round, ends: tuple[End, End], present: Mapping[str, Collection], shape: Shape, moments: Moments
) -> Passed | None:
    """Compare the next piece of a round. Return its findings, or None if the round is complete.

    Args:
        present: all collections by namespace; views have no documents.
    """
    namespace = current.next(present)
    if namespace is None:
        return None
    found = current.report.collections[namespace]
    if present[namespace].kind != "view" and namespace not in current.report.not_compared:
        # Further differences would not be kept, and confirming them would take reads at several moments.
        piece = await piece_compared(*ends, namespace, current.position, moments, finds=not found.is_cut)
        found.documents += piece.documents
        found.target_documents += piece.target_documents
        current.report.note(namespace, piece.checked, piece.found)
        current.position = piece.last
        if piece.last is not None:
            return {}
    found.problems = await shape(namespace)
    current.passed()
    return {namespace: found}


async def _lasting_problems(namespace: str, shape: Shape) -> list[str]:
    """Return the differences of a collection that persist for some time, in which DDL may be applied."""
    found = await shape(namespace)
    for _ in range(SHAPE_RECHECKS):
        if not found:
            break
        await asyncio.sleep(SHAPE_PAUSE_SECONDS)
        found = await shape(namespace)
    return found


class StandaloneVerification:
    """One round between two deployments, which need not belong to a replication."""

    def __init__(self, replication: Replication, source: End, target: End, place_file: Path | None) -> None:
        """Prepare the round.

        Args:
            place_file: stores the position for the case of an interruption; None to store nothing.
        """
        self.round = Round()
        self._replication, self._ends, self._file = replication, (source, target), place_file
        self._estimated = 0
        self._is_followed = False

    async def run(self) -> Report:
        """Compare everything."""
        if self._file is not None and self._file.exists():
            self.round = Round.restored(loads(self._file.read_text(encoding="utf-8")))
        source, target = self._ends
        chosen = self._replication.filter
        ours = await repeated(lambda: source.deployment(chosen))
        theirs = await repeated(lambda: target.deployment(chosen))
        present = self._compared(ours, theirs)
        names = [namespace for namespace, each in present.items() if each.kind == "collection"]
        self._estimated = await repeated(lambda: source.estimated_documents(names))
        await self._moment()
        shape = self._shape(ours, theirs)
        saved = monotonic()
        while await _advance(self.round, self._ends, present, shape, self._moment) is not None:
            if self._file is not None and monotonic() - saved > SAVE_SECONDS:
                self._save(self._file)
                saved = monotonic()
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        return self.round.report

    def progress(self) -> dict[str, Any]:
        """Return the progress, for users."""
        compared = sum(each.documents for each in self.round.report.collections.values())
        return {
            "phase": "verification",
            "collection": self.round.current,
            "comparedDocuments": compared,
            "estimatedDocuments": max(self._estimated, compared),
            "mismatches": self.round.report.mismatches,
        }

    def _compared(self, ours: Deployment, theirs: Deployment) -> dict[str, Collection]:
        found: dict[str, Collection] = {}
        for each in [*ours.collections.values(), *theirs.collections.values()]:
            if each.kind == "timeseries":
                self.round.report.not_compared[each.namespace] = "its documents are in buckets, which have no order"
            elif each.namespace.partition(".")[2].startswith("system."):
                self.round.report.not_compared[each.namespace] = "it is a system collection"
            else:
                known = found.setdefault(each.namespace, each)
                if known.options.get("collation") != each.options.get("collation"):
                    # Pieces in different orders would not advance together, and might never reach the end.
                    reason = "its documents are in another order at the target, because the collation is different"
                    self.round.report.not_compared[each.namespace] = reason
        return found

    def _save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(dumps(self.round.stored(), json_options=CANONICAL_JSON_OPTIONS), encoding="utf-8")
        new.replace(file)

    def _shape(self, ours: Deployment, theirs: Deployment) -> Shape:
        async def shape_now(namespace: str) -> list[str]:
            found = []
            for end, deployment in zip(self._ends, (ours, theirs), strict=True):
                database, _, name = namespace.partition(".")
                each = await repeated(
                    lambda end=end, sharded=deployment.is_sharded, database=database, name=name: end.collections(  # type: ignore[misc]
                        database, is_sharded=sharded, named=name
                    )
                )
                found.append(each[0] if each else None)
            wanted = None if found[0] is None else at_target(found[0], self._replication, theirs)
            return shape_problems(found[0], wanted, found[1])

        async def shape(namespace: str) -> list[str]:
            return await (_lasting_problems(namespace, shape_now) if self._is_followed else shape_now(namespace))

        return shape

    async def _moment(self) -> Moment:
        """Return the last moment that a running replication has published, or now."""
        source, target = self._ends
        direction = [place(self._replication.source), place(self._replication.target)]
        running = {"until": {"$gt": datetime.now(UTC)}, "progress.lastConsistentTime": {"$ne": None}}
        async for each in target.own(LEASES).find(running):
            progress = each["progress"]
            mapped = progress.get("directionMapping", {})
            if [mapped.get("Source"), mapped.get("Destination")] == direction:
                self._is_followed = True
                last: Mapping[str, Timestamp] = progress["lastConsistentTime"]
                return last["source"], last["target"]
        return await repeated(source.now), await repeated(target.now)


def ids_of(report: Report) -> Sequence[tuple[str, Sequence[Any]]]:
    """Return the documents of a report that differ, by namespace."""
    return [(namespace, sorted(each.ids)) for namespace, each in report.collections.items() if each.ids]


class Verifier:
    """Compares both ends for ever.

    Attributes:
        report: the findings of the last comparison of each collection.
        is_covered: whether every document was compared after its last change, except for changes of the last seconds.
    """

    def __init__(
        self, source: End, target: End, store: Store, writer: Writer, catalog: Catalog, follower: Follower
    ) -> None:
        self.report = Report()
        self.round = Round()
        self.rounds = 0
        self.is_covered = False
        self._ends, self._store = (source, target), store
        self._writer, self._catalog, self._follower = writer, catalog, follower
        self._lock = asyncio.Lock()
        self._wakes = asyncio.Event()
        self._completed = asyncio.Condition()
        self._hurries = 0
        self._saves_at = 0.0
        self._token: bytes | None = None

    async def run(self) -> None:
        """Compare for ever."""
        await self._restore()
        rests_until = 0.0
        while True:
            await self._follower.allowed.wait()
            began = monotonic()
            try:
                async with self._lock:
                    await self._compare_touched(self.moment)
                    if self._hurries or began >= rests_until:
                        passed = await _advance(
                            self.round, self._ends, self._catalog.present, self._problems, self.moment
                        )
                        is_complete = passed is None
                        await self._note(passed)
                        took = monotonic() - began
                        rests_until = monotonic() + (took * REST if self.is_covered else 0)
                        if is_complete:
                            rests_until += ROUND_PAUSE_SECONDS
            except NoMomentError as error:
                _log.warning("A comparison is repeated", error=str(error))
            check_cancellation()
            await self._rest(0.0 if self._hurries else min(rests_until - monotonic(), TICK_SECONDS))

    async def complete(self) -> Report:
        """Wait until every document was compared, without rests; return the findings."""
        self._hurries += 1
        self._wakes.set()
        try:
            while True:
                async with self._completed:
                    await self._completed.wait_for(lambda: self.is_covered)
                await self.recheck()
                if self.is_covered:  # there may have been too many writes since the round
                    return self.report
        finally:
            self._hurries -= 1

    async def again(self) -> Report:
        """Compare everything again; return the findings."""
        async with self._lock:
            self.round, self.is_covered = Round(), False
        return await self.complete()

    async def recheck(self, moments: Moments | None = None) -> Report:
        """Compare the differing documents again, and the writes of the last seconds.

        If there were too many writes, `is_covered` is false afterwards.

        Args:
            moments: of both ends, if they are known to be equal because there are no more writes.
        """
        async with self._lock:
            at = moments or self.moment
            await self._compare_touched(at)
            for namespace, found in self.report.collections.items():
                if found.ids:
                    ids = found.ids
                    self.report.note(namespace, ids, await rechecked(*self._ends, namespace, ids, at))
                if found.problems:
                    found.problems = await self._problems(namespace)
            await self._save()
        return self.report

    async def moment(self) -> Moment:
        """Return a moment at which the target equalled a state of the source; wait for the first one.

        If the target still equals that state, the moment is now, so that it shows writes by others at the target.
        """
        await self._follower.wait_consistent()
        async with self._writer.lock:
            self._follower.note_idle(await repeated(self._ends[1].now))
            return await self._follower.wait_consistent()

    def progress(self, lag_seconds: int) -> dict[str, Any]:
        """Return the progress, with mongosync's names."""
        compared, present = self.round.report.collections, self._catalog.present
        is_over = self.is_covered and not compared
        shown = self.report.collections if is_over else compared
        estimated = {namespace: each.documents for namespace, each in self.report.collections.items()}

        def side(attribute: str, lag: int) -> dict[str, Any]:
            hashed = sum(getattr(each, attribute) for each in shown.values())
            return {
                "estimatedDocumentCount": max(hashed, sum(estimated.values())),
                "hashedDocumentCount": hashed,
                "scannedCollectionCount": len(present) if is_over else len(self.round.done),
                "totalCollectionCount": len(present),
                "lagTimeSeconds": lag,
            }

        return {
            "source": side("documents", 0),
            "destination": side("target_documents", lag_seconds),
            "rounds": self.rounds,
            "complete": self.is_covered,
            "equal": self.report.is_equal,
            "mismatches": self.report.mismatches,
        }

    async def _problems(self, namespace: str) -> list[str]:
        return await _lasting_problems(namespace, self._catalog.problems)

    async def _rest(self, seconds: float) -> None:
        if seconds <= 0:
            return
        self._wakes.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wakes.wait()
        except TimeoutError:
            return

    async def _note(self, passed: Passed | None) -> None:
        """Account for a compared piece, or for the end of the round."""
        is_complete = passed is None
        for namespace, found in (passed or {}).items():
            self.report.put(namespace, found)
        if is_complete:
            self.report.keep(self._catalog.present)
            self.rounds += 1
            self.is_covered = not self._writer.touched.is_full
            self._writer.touched.is_full = False
            self.round = Round()
            if not self.report.is_equal:
                _log.warning("Source and target differ", mismatches=self.report.mismatches)
        if is_complete or monotonic() >= self._saves_at:
            await self._save()
        if is_complete:
            async with self._completed:
                self._completed.notify_all()

    async def _compare_touched(self, moments: Moments) -> None:
        """Compare the documents written since the last call."""
        if self._writer.touched.is_full:
            self.is_covered = False
        token, until = self._follower.token, self._writer.touched_until
        left = self._writer.touched.take()
        try:
            if moments == self.moment and any(left.values()):
                # An earlier state of the target would not have these writes.
                await self._follower.wait_consistent(until)
            for namespace, ids in list(left.items()):
                await self._compare_ids(namespace, ids, moments)
                del left[namespace]
        finally:
            for namespace, ids in left.items():
                self._writer.touched.note(namespace, ids)
        self._token = token or self._token

    async def _compare_ids(self, namespace: str, ids: set[Value], moments: Moments) -> None:
        if not ids or namespace not in self._catalog.present:
            return
        found = await ids_compared(*self._ends, namespace, ids, moments)
        if found.all:
            found = await rechecked(*self._ends, namespace, found.all, moments)
        if found.all and namespace not in self.report.collections:
            # It is new since the last round, or its findings did not fit into the stored report.
            self.report.put(namespace, Compared())
        for report in (self.report, self.round.report):
            if namespace in report.collections:
                report.note(namespace, ids, found)

    async def _save(self) -> None:
        began = monotonic()
        report = Round(self.report).stored()
        known = {each["ns"] for each in report["collections"]}
        # Another process would take them for equal until it has compared them.
        lost = {name for name, each in self.report.collections.items() if name not in known and not each.is_equal}
        fields = {
            "round": self.round.stored(again=lost),
            "report": report,
            "rounds": self.rounds,
            "is_covered": self.is_covered and not lost,
            "is_full": self._writer.touched.is_full,
            "token": self._token,
        }
        await self._store.fenced(VERIFICATION, {"_id": self._store.id}, fields)
        took = monotonic() - began
        self._saves_at = monotonic() + max(SAVE_SECONDS, took * SAVE_REST)

    async def _restore(self) -> None:
        stored = await repeated(self._store.verification)
        self._token = self._follower.token
        if not stored.get("round"):
            self._writer.touched = Touched()
            return
        self.round = Round.restored(stored["round"])
        self.report = Round.restored(stored["report"]).report
        self.rounds, self.is_covered = stored["rounds"], stored["is_covered"]
        self._writer.touched.is_full |= stored.get("is_full", False)
        if stored["token"] is not None:
            await self._recover(bytes(stored["token"]))

    async def _recover(self, token: bytes) -> None:
        """Note the documents that an earlier process has written, but not compared."""
        try:
            await repeated(lambda: self._follower.note_written_since(decode(token)))
        except OperationFailure as error:
            if error.code not in HISTORY_LOST:
                raise
            self._writer.touched.is_full = True


def at(source: Timestamp, target: Timestamp) -> Moments:
    """Return a function that always returns the same moment."""

    async def moments() -> Moment:
        return source, target

    return moments


def summary(progress: Mapping[str, Any]) -> str:
    """Summarize the progress of verification for people."""
    if not progress.get("complete"):
        return "comparing"
    return "equal" if progress.get("equal") else f"{progress.get('mismatches')} differences"
