"""Verification that runs as long as a replication follows its source.

Rounds compare all documents, slowly once the first is complete. Documents written in the meantime are compared again
between two pieces. So every document is compared after its last change, and a commit has to compare only the documents
of the last seconds. Position and findings are stored at the target, so another process continues the round.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from bson import decode
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.sync.comparing import Moment, Moments, NoMomentError, ids_compared, rechecked
from shardwright.sync.ddl import Catalog
from shardwright.sync.ends import HISTORY_LOST, End, check_cancellation, repeated
from shardwright.sync.following import Follower
from shardwright.sync.rounds import Report, Round, Touched
from shardwright.sync.store import VERIFICATION, Store
from shardwright.sync.verifying import advance, lasting_problems
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

TICK_SECONDS: Final = 1.0
ROUND_PAUSE_SECONDS: Final = 10.0
REST: Final = 9
"""Length of the rest after a piece, as a multiple of its duration, once a round is complete."""

_log = get_logger("sync.verifier")


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
                        is_complete = not await advance(
                            self.round, self._ends, self._catalog.kinds(), self._problems, self.moment
                        )
                        await self._passed(is_complete=is_complete)
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
            async with self._completed:
                await self._completed.wait_for(lambda: self.is_covered)
            await self.recheck()
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

        Args:
            moments: of both ends, if they are known to be equal because there are no more writes.
        """
        async with self._lock:
            at = moments or self.moment
            await self._compare_touched(at)
            for namespace, found in self.report.collections.items():
                if found.ids:
                    ids = found.ids
                    found.note(ids, await rechecked(*self._ends, namespace, ids, at))
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
        compared, kinds = self.round.report.collections, self._catalog.kinds()
        is_over = self.is_covered and not compared
        shown = self.report.collections if is_over else compared
        estimated = {namespace: each.documents for namespace, each in self.report.collections.items()}

        def side(attribute: str, lag: int) -> dict[str, Any]:
            hashed = sum(getattr(each, attribute) for each in shown.values())
            return {
                "estimatedDocumentCount": max(hashed, sum(estimated.values())),
                "hashedDocumentCount": hashed,
                "scannedCollectionCount": len(kinds) if is_over else len(self.round.done),
                "totalCollectionCount": len(kinds),
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
        return await lasting_problems(namespace, self._catalog.problems)

    async def _rest(self, seconds: float) -> None:
        if seconds <= 0:
            return
        self._wakes.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wakes.wait()
        except TimeoutError:
            return

    async def _passed(self, *, is_complete: bool) -> None:
        """Account for a compared piece."""
        for namespace in self.round.done:
            if namespace in self.round.report.collections:
                self.report.collections[namespace] = self.round.report.collections[namespace]
        if is_complete:
            kinds = self._catalog.kinds()
            self.report.collections = {name: each for name, each in self.report.collections.items() if name in kinds}
            self.rounds += 1
            self.is_covered = not self._writer.touched.is_full
            self._writer.touched.is_full = False
            self.round = Round()
            if not self.report.is_equal:
                _log.warning("Source and target differ", mismatches=self.report.mismatches)
        await self._save()
        if is_complete:
            async with self._completed:
                self._completed.notify_all()

    async def _compare_touched(self, moments: Moments) -> None:
        """Compare the documents written since the last call."""
        if self._writer.touched.is_full:
            self.is_covered = False
        token, until = self._follower.token, self._writer.touched_until
        written = self._writer.touched.take()
        if moments == self.moment and any(written.values()):
            # An earlier state of the target would not have these writes.
            await self._follower.wait_consistent(until)
        for namespace, ids in written.items():
            if not ids or namespace not in self._catalog.kinds():
                continue
            try:
                found = await ids_compared(*self._ends, namespace, ids, moments)
                if found.all:
                    found = await rechecked(*self._ends, namespace, found.all, moments)
            except NoMomentError:
                self._writer.touched.note(namespace, ids)
                raise
            for report in (self.report, self.round.report):
                if namespace in report.collections:
                    report.collections[namespace].note(ids, found)
        self._token = token or self._token

    async def _save(self) -> None:
        fields = {
            "round": self.round.stored(),
            "report": Round(self.report).stored(),
            "rounds": self.rounds,
            "is_covered": self.is_covered,
            "token": self._token,
        }
        await self._store.fenced(VERIFICATION, {"_id": self._store.id}, fields)

    async def _restore(self) -> None:
        stored = await repeated(self._store.verification)
        self._token = self._follower.token
        if not stored.get("round"):
            self._writer.touched = Touched()
            return
        self.round = Round.restored(stored["round"])
        self.report = Round.restored(stored["report"]).report
        self.rounds, self.is_covered = stored["rounds"], stored["is_covered"]
        if stored["token"] is not None:
            await self._recover(bytes(stored["token"]))

    async def _recover(self, token: bytes) -> None:
        """Find the documents that an earlier process has written, but not compared."""
        try:
            for namespace, ids in (await repeated(lambda: self._follower.written_since(decode(token)))).items():
                self._writer.touched.note(namespace, ids)
        except OperationFailure as error:
            if error.code not in HISTORY_LOST:
                raise
            self.is_covered = False


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
