"""Comparing two ends by digests of pieces of ranges, narrowed to the documents that differ."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shardwright.sync.changes import Value, id_of
from shardwright.sync.ends import RAW, End, repeated
from shardwright.sync.plan import index_at_target
from shardwright.sync.ranges import Bound, differences, digest, find_command, hashes, id_bound

PIECE_DOCUMENTS: Final = 1000
SHOWN_MAX: Final = 100

Moment = tuple[Timestamp, Timestamp]
"""Cluster times of source and target at which the target was that state of the source."""


@dataclass
class Compared:
    """A collection.

    Attributes:
        documents: that were compared.
        missing: at the target.
        extra: only at the target.
        different: on both sides, but not alike.
        ids: of some of these documents.
        problems: differences of indexes and options.
    """

    documents: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    ids: list[Value] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.extra or self.different or self.problems)


@dataclass
class Report:
    """All collections, by namespace."""

    collections: dict[str, Compared] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return all(each.is_equal for each in self.collections.values())

    def document(self) -> dict[str, Any]:
        """The report as a document."""
        return {
            "equal": self.is_equal,
            "collections": {
                namespace: {
                    "documents": each.documents,
                    "missing": each.missing,
                    "extra": each.extra,
                    "different": each.different,
                    "ids": [dict(RawBSONDocument(id_bound(key)))["_id"] for key in each.ids],
                    "problems": each.problems,
                }
                for namespace, each in self.collections.items()
            },
        }


async def verified(source: End, target: End, namespaces: Sequence[str], moment: Callable[[], Moment | None]) -> Report:
    """Compare collections.

    Args:
        source: one end.
        target: the other.
        namespaces: the collections.
        moment: a moment to read both ends at; None to read them as they are.
    """
    report = Report()
    for namespace in namespaces:
        report.collections[namespace] = found = Compared()
        await _compare_documents(source, target, namespace, moment, found)
        await _compare_indexes(source, target, namespace, found)
    return report


async def _compare_documents(
    source: End, target: End, namespace: str, moment: Callable[[], Moment | None], found: Compared
) -> None:
    position: Bound = None
    while True:
        at = moment()
        concerns = [_concern(None if at is None else time) for time in (at or (None, None))]
        ours = await _read(source, namespace, position, None, concerns[0])
        last: Bound = id_bound(id_of(bytes(ours[-1].raw))) if ours else None
        theirs = [each async for each in _all(target, namespace, position, last, concerns[1])]
        one, other = hashes(bytes(each.raw) for each in ours), hashes(bytes(each.raw) for each in theirs)
        found.documents += len(ours)
        if digest(one) != digest(other):
            differing = differences(one, other)
            found.missing += len(differing.missing)
            found.extra += len(differing.extra)
            found.different += len(differing.different)
            found.ids += differing.all[: SHOWN_MAX - len(found.ids)]
        if last is None:
            return
        position = last


async def _compare_indexes(source: End, target: End, namespace: str, found: Compared) -> None:
    ours, theirs = [
        {str(each["name"]): index_at_target(each, keeps_expiry=False) for each in await end.indexes(namespace)}
        for end in (source, target)
    ]
    found.problems += [
        f"the index {name} is missing or different at the target"
        for name, index in ours.items()
        if theirs.get(name) != index
    ]


async def _all(
    end: End, namespace: str, low: Bound, high: Bound, concern: Mapping[str, Any]
) -> AsyncIterator[RawBSONDocument]:
    while documents := await _read(end, namespace, low, high, concern):
        for each in documents:
            yield each
        low = id_bound(id_of(bytes(documents[-1].raw)))


async def _read(end: End, namespace: str, low: Bound, high: Bound, concern: Mapping[str, Any]) -> list[RawBSONDocument]:
    database, _, name = namespace.partition(".")
    command = find_command(name, low, high, PIECE_DOCUMENTS, concern)

    async def attempt() -> Any:  # noqa: ANN401 - a reply
        return await end.client.get_database(database).command(command, codec_options=RAW)

    reply = await repeated(attempt)
    return list(reply["cursor"]["firstBatch"])


def _concern(time: Timestamp | None) -> dict[str, Any]:
    return {"level": "majority"} if time is None else {"level": "snapshot", "atClusterTime": time}
