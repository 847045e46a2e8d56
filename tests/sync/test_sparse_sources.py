"""Comparisons with a target that has many more documents than the source; their memory is bounded."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.sync import comparing, copying, verification
from shardwright.sync.batches import Limits
from shardwright.sync.changes import Value
from shardwright.sync.comparing import Moment, piece_compared
from shardwright.sync.copying import Copier
from shardwright.sync.plan import Collection, Deployment
from shardwright.sync.ranges import Bound, Differences, Hashes, differences, id_bound
from shardwright.sync.replication import Replication
from shardwright.sync.rounds import KEPT_MAX, Round
from shardwright.sync.store import Refusal
from shardwright.sync.verification import StandaloneVerification
from shardwright.sync.writing import Writer

PIECE: Final = 5
NS: Final = "db.a"
UUID: Final = b"1" * 16
MANY: Final = {*range(10, 500)}

SPARSE: Final = [set[int](), {1}, {5000}, {1, 250, 5000}, {*range(1, 10)}, {*range(1, 800, 50)}]
"""Sources whose documents have a gap with many documents of the target."""


def raw(number: int) -> RawBSONDocument:
    return RawBSONDocument(bson.encode({"_id": number}))


def number_in(document: bytes) -> int:
    """Return the only value of a document."""
    [found] = bson.decode(document).values()
    return int(found)


def numbers(keys: Iterable[Value]) -> set[int]:
    return {number_in(id_bound(each)) for each in keys}


class Numbers:
    """An end with one collection of documents ``{_id: number}``; also its client, its session and its collection."""

    operation_time = None

    def __init__(self, ids: set[int]) -> None:
        self.ids = ids
        self.client = self

    async def uuid(self, _: str) -> bytes:
        return UUID

    def collection(self, _: str) -> "Numbers":
        return self

    def get_database(self, *_: object, **__: object) -> "Numbers":
        return self

    @asynccontextmanager
    async def start_session(self, **_: object) -> AsyncIterator["Numbers"]:
        yield self

    async def command(self, command: Mapping[str, Any], **_: object) -> dict[str, Any]:
        return {"cursor": {"firstBatch": self._found(command["filter"])[: command["limit"]]}}

    async def find(self, query: Mapping[str, Any], *, limit: int = 0, **_: object) -> AsyncIterator[RawBSONDocument]:
        for each in self._found(query)[: limit or None]:
            yield each

    def _found(self, query: Mapping[str, Any]) -> list[RawBSONDocument]:
        if "_id" in query:
            return [raw(each) for each in sorted({*query["_id"]["$in"]} & self.ids)]
        conditions = query["$expr"]["$and"] if query else []
        bounds = {name: number_in(bound.raw) for each in conditions for name, (_, bound) in each.items()}
        return [
            raw(each) for each in sorted(self.ids) if bounds.get("$gt", each - 1) < each <= bounds.get("$lte", each)
        ]


class Held:
    """Counts the hashes that comparisons hold at once."""

    most = 0

    def differences(self, source: Hashes, target: Hashes) -> Differences:
        self.most = max(self.most, len(source) + len(target))
        return differences(source, target)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found = Held()
    for module in (comparing, copying):
        monkeypatch.setattr(module, "differences", found.differences)
    for name, value in (("PIECE_DOCUMENTS", PIECE), ("IDS_AT_ONCE", PIECE), ("MOMENT_PAUSE_SECONDS", 0.0)):
        monkeypatch.setattr(comparing, name, value)
    return found


async def moments() -> Moment:
    return Timestamp(1, 1), Timestamp(1, 1)


async def pieces(source: set[int], target: set[int], note: Callable[[comparing.PieceCompared], None]) -> None:
    """Compare a collection piece by piece."""
    ours: Any = Numbers(source)
    theirs: Any = Numbers(target)
    low: Bound = None
    while True:
        piece = await piece_compared(ours, theirs, NS, low, moments)
        note(piece)
        if piece.last is None:
            return
        assert low is None or number_in(piece.last) > number_in(low)
        low = piece.last


@pytest.mark.parametrize("source", SPARSE)
def test_a_verification_holds_a_piece_of_each_end(source: set[int], held: Held) -> None:
    extra = list[Value]()
    asyncio.run(pieces(source, MANY, lambda piece: extra.extend(piece.found.extra)))
    assert numbers(extra) == MANY - source
    assert len(extra) == len(MANY - source)
    assert held.most <= 2 * PIECE


IDS: Final = st.sets(st.integers(0, 60), max_size=50)


@given(IDS, IDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_pieces_of_both_ends_find_every_difference_once(held: Held, source: set[int], target: set[int]) -> None:
    missing, extra = list[Value](), list[Value]()
    counts = [0, 0]

    def note(piece: comparing.PieceCompared) -> None:
        missing.extend(piece.found.missing)
        extra.extend(piece.found.extra)
        counts[0] += piece.documents
        counts[1] += piece.target_documents
        assert piece.documents <= PIECE
        assert piece.target_documents <= PIECE

    asyncio.run(pieces(source, target, note))
    assert sorted(numbers(missing)) == sorted(source - target)
    assert sorted(numbers(extra)) == sorted(target - source)
    assert (len(missing), len(extra)) == (len(source - target), len(target - source))
    assert counts == [len(source), len(target)]
    assert held.most <= 2 * PIECE


def copy(source: set[int], target: set[int], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Copy or compare a range, and return its stored form."""
    stored = {
        **{"_id": "1", "ns": NS, "uuid": UUID, "low": None, "high": None, "position": None},
        **{"compares": True, "done": False, "documents": 0, "bytes": 0, **fields},
    }

    async def fenced(_: str, __: object, changes: dict[str, Any]) -> None:
        stored.update(changes)

    async def reconcile(_: str, ids: Iterable[Value]) -> list[Refusal]:
        keys = list(ids)
        assert len(keys) <= 2 * PIECE
        for number in numbers(keys):
            target.discard(number)
            target.update({number} & source)
        return []

    ours: Any = Numbers(source)
    theirs: Any = Numbers(target)
    store: Any = SimpleNamespace(fenced=fenced)
    writer: Any = Writer(ours, theirs, store)
    writer.reconcile = reconcile
    limits = Limits(documents=PIECE)
    asyncio.run(Copier(ours, theirs, store, writer, [{**stored}], workers=1, limits=limits).run())
    return stored


@pytest.mark.parametrize("source", SPARSE)
def test_a_copy_that_compares_holds_a_piece_of_each_end(source: set[int], held: Held) -> None:
    target = {*MANY}
    assert copy(source, target, {})["done"]
    assert target == source
    assert held.most <= 2 * PIECE + 1


@given(IDS, IDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_copy_that_compares_makes_any_target_equal(held: Held, source: set[int], target: set[int]) -> None:
    stored = copy(source, target, {})
    assert target == source
    assert (stored["done"], stored["documents"]) == (True, len(source))
    assert held.most <= 2 * PIECE + 1


def test_an_interrupted_insert_is_compared_in_pieces(held: Held) -> None:
    """The copy inserts documents again only after the end of the interrupted insert, here at the end of the range."""
    source, target = {1, 499}, {*MANY}
    stored = copy(
        source, target, {"compares": False, "inserted": bson.encode({"_id": 499}), "high": bson.encode({"_id": 499})}
    )
    assert (target, stored["done"], stored["inserted"]) == (source, True, None)
    assert held.most <= 2 * PIECE + 1


def test_documents_that_are_not_kept_are_not_compared_again(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison takes some seconds, and one more difference says nothing new about a collection with so many."""
    source: Any = Numbers(set())
    target: Any = Numbers(MANY)
    rechecks = 0

    async def rechecked(*arguments: Any) -> Differences:  # noqa: ANN401
        nonlocal rechecks
        rechecks += 1
        return await comparing.ids_compared(*arguments)

    async def shape(_: str) -> list[str]:
        await asyncio.sleep(0)
        return []

    async def run() -> None:
        current = Round()
        while await verification._advance(current, (source, target), {NS: Collection(NS)}, shape, moments) is not None:
            pass
        found = current.report.collections[NS]
        assert (found.target_documents, len(found.extra), found.is_cut) == (len(MANY), KEPT_MAX, True)

    monkeypatch.setattr(comparing, "rechecked", rechecked)
    asyncio.run(run())
    assert rechecks == KEPT_MAX // PIECE + 1
    assert held.most <= 2 * PIECE


def test_documents_in_two_orders_are_not_compared() -> None:
    """Each end would end pieces at places that the other one has passed, and a round might never end."""
    ours, theirs = [
        Deployment(is_sharded=False, version=(6, 0), identity=locale, collections={NS: Collection(NS, options=options)})
        for locale, options in (("simple", {}), ("en", {"collation": {"locale": "en"}}))
    ]
    end: Any = None

    async def shape(_: str) -> list[str]:
        await asyncio.sleep(0)
        return ["the option collation is different at the target"]

    async def run() -> None:
        alone = StandaloneVerification(Replication("mongodb://a", "mongodb://b"), end, end, None)
        present = alone._compared(ours, theirs)
        while await verification._advance(alone.round, (end, end), present, shape, moments) is not None:
            pass
        assert not alone.round.report.is_equal
        assert "another order" in alone.round.report.not_compared[NS]

    asyncio.run(run())
