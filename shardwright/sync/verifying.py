"""Rounds of verification, and ``sync verify``, which runs one round between any two deployments.

Comparisons raise `comparing.NoMomentError` if there is no moment at which both ends can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from bson.json_util import CANONICAL_JSON_OPTIONS, dumps, loads

from shardwright.sync.comparing import Moment, Moments, piece_compared
from shardwright.sync.ends import End, repeated
from shardwright.sync.plan import Deployment, at_target
from shardwright.sync.replication import Replication, place
from shardwright.sync.rounds import Report, Round
from shardwright.sync.shapes import problems
from shardwright.sync.store import LEASES

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

SAVE_SECONDS: Final = 2.0
SHAPE_RECHECKS: Final = 3
SHAPE_PAUSE_SECONDS: Final = 3.0

Shape = Callable[[str], Awaitable[list[str]]]
"""Returns the differences of a collection outside its documents."""


async def advance(
    current: Round, ends: tuple[End, End], namespaces: Mapping[str, str], shape: Shape, moments: Moments
) -> bool:
    """Compare the next piece of a round; return False if the round is complete.

    Args:
        namespaces: the kinds of all collections by namespace; views have no documents.
    """
    namespace = current.next(sorted(namespaces))
    if namespace is None:
        return False
    found = current.report.collections[namespace]
    if namespaces[namespace] != "view":
        piece = await piece_compared(*ends, namespace, current.position, moments)
        found.documents += piece.documents
        found.target_documents += piece.target_documents
        found.note(piece.checked, piece.found)
        current.position = piece.last
        if piece.last is not None:
            return True
    found.problems = await shape(namespace)
    current.passed()
    return True


async def lasting_problems(namespace: str, shape: Shape) -> list[str]:
    """Return the differences of a collection that persist for some time, in which DDL may be applied."""
    found = await shape(namespace)
    for _ in range(SHAPE_RECHECKS):
        if not found:
            break
        await asyncio.sleep(SHAPE_PAUSE_SECONDS)
        found = await shape(namespace)
    return found


class Alone:
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
        ours, theirs = await source.deployment(chosen), await target.deployment(chosen)
        kinds = self._kinds(ours, theirs)
        self._estimated = await source.estimated_documents([each for each in kinds if kinds[each] == "collection"])
        await self._moment()
        shape = self._shape(ours, theirs)
        saved = monotonic()
        while await advance(self.round, self._ends, kinds, shape, self._moment):
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

    def _kinds(self, *deployments: Deployment) -> dict[str, str]:
        kinds: dict[str, str] = {}
        for each in [each for deployment in deployments for each in deployment.collections.values()]:
            if each.kind == "timeseries":
                self.round.report.not_compared[each.namespace] = "its documents are in buckets, which have no order"
            elif each.namespace.partition(".")[2].startswith("system."):
                self.round.report.not_compared[each.namespace] = "it is a system collection"
            else:
                kinds.setdefault(each.namespace, each.kind)
        return kinds

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
            return problems(found[0], wanted, found[1])

        async def shape(namespace: str) -> list[str]:
            return await (lasting_problems(namespace, shape_now) if self._is_followed else shape_now(namespace))

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
