"""Stored documents about very many collections: each stays below 16 MB, and nothing that differs is lost."""

import asyncio
from collections.abc import Collection as Names
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import bson
import pytest

from shardwright.sync import rounds, verification
from shardwright.sync.changes import Value, id_of
from shardwright.sync.plan import Collection
from shardwright.sync.ranges import Differences
from shardwright.sync.rounds import KEPT_MAX, Compared, Report, Round
from shardwright.sync.verification import Verifier
from shardwright.sync.writing import Writer

MANY: Final = dict.fromkeys(f"db.{each:05}{'x' * 245}" for each in range(10_000))
SOME: Final = [f"db.{each:02}" for each in range(20)]
SMALL: Final = 2000
"""A size that is too small for the findings of `SOME`."""


def key(number: int) -> Value:
    return id_of(bson.encode({"_id": number}))


def keys(count: int) -> tuple[Value, ...]:
    return tuple(key(each) for each in range(count))


def complete(names: Names[str], differing: set[str], *, documents: int = 1) -> Round:
    """A round that has compared all collections; in some of them documents differ."""
    found = Round()
    for _ in names:
        name = found.next(names)
        assert name is not None
        found.report.note(name, (), Differences(extra=keys(documents) if name in differing else ()))
        found.passed()
    return found


def verifying(names: Names[str], report: Report, current: Round) -> tuple[Verifier, dict[str, Any]]:
    """A verification, and the fields that it stores."""
    stored: dict[str, Any] = {}

    async def fenced(_: str, __: object, fields: dict[str, Any]) -> None:
        stored.clear()
        stored.update(bson.decode(bson.encode(fields)))

    store: Any = SimpleNamespace(id="1", fenced=fenced, verification=lambda: asyncio.sleep(0, stored))
    other: Any = SimpleNamespace(present={name: Collection(name) for name in names}, token=None)
    verifier = Verifier(other, other, store, Writer(other, other, store), other, other)
    verifier.report, verifier.round, verifier.is_covered = report, current, True
    return verifier, stored


def restarted(names: Names[str], report: Report, current: Round) -> Verifier:
    """The verification of a process that continues an interrupted one."""

    async def run() -> Verifier:
        verifier, _ = verifying(names, report, current)
        await verifier._save()
        following = Verifier(*verifier._ends, verifier._store, verifier._writer, verifier._catalog, verifier._follower)
        await following._restore()
        return following

    return asyncio.run(run())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a report to two thousand bytes."""
    monkeypatch.setattr(rounds, "STORED_BYTES_MAX", SMALL)


@pytest.mark.parametrize("differing", [0, len(MANY)], ids=["equal", "different"])
def test_the_verification_of_ten_thousand_collections_fits_into_one_document(differing: int) -> None:
    """After an interruption, only collections that did not fit are compared again."""
    found = complete(MANY, {*islice(MANY, differing)}, documents=20)
    verifier, stored = verifying(MANY, found.report, found)
    asyncio.run(verifier._save())
    assert len(bson.encode(stored)) < 13_000_000
    restored = Round.restored(stored["round"])
    assert restored.report.is_equal is not bool(differing)
    assert len(restored.done) > len(MANY) / 2
    assert restored.next(MANY) == min({*MANY} - restored.done)


@pytest.mark.usefixtures("small")
def test_differences_are_stored_before_equal_collections() -> None:
    late = {*SOME[-3:]}
    stored = complete(SOME, late).stored()
    assert len(bson.encode(stored)) < 2 * SMALL
    restored = Round.restored(stored)
    assert {*list(restored.report.collections)[:3]} == late
    assert late < restored.done < {*SOME}


@pytest.mark.usefixtures("small")
def test_differences_that_are_not_stored_are_found_again() -> None:
    """Another process would take the ends for equal, and commit."""
    found = complete(SOME, {*SOME})
    following = restarted(SOME, found.report, Round())
    assert not following.report.is_equal
    assert following.report.collections.keys() < {*SOME}
    assert not following.is_covered
    # In the middle of a round, the rest of it has to compare them.
    first = complete(SOME[:15], {*SOME})
    following = restarted(SOME, found.report, first)
    assert following.report.collections.keys() >= following.round.done
    assert not following.is_covered


@pytest.mark.usefixtures("small")
def test_equal_collections_that_are_not_stored_need_no_other_round() -> None:
    found = complete(SOME, {SOME[3]})
    following = restarted(SOME, found.report, Round())
    assert SOME[3] in following.report.collections
    assert following.report.collections.keys() < {*SOME}
    assert following.is_covered


def test_a_difference_in_a_collection_without_findings_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection is new since the last round, or its findings did not fit into the stored report."""

    async def compared(*_: object) -> Differences:
        await asyncio.sleep(0)
        return Differences(missing=keys(1))

    monkeypatch.setattr(verification, "ids_compared", compared)
    monkeypatch.setattr(verification, "rechecked", compared)
    verifier, _ = verifying(SOME, Report(), Round())
    asyncio.run(verifier._compare_ids(SOME[0], {*keys(1)}, verifier.moment))
    assert verifier.report.mismatches == 1
    assert not verifier.round.report.collections


@pytest.mark.usefixtures("small")
def test_one_collection_with_long_findings_does_not_displace_the_others() -> None:
    found = complete(SOME[:3], {SOME[0]})
    found.report.collections[SOME[0]].problems = ["x" * SMALL]
    assert Round.restored(found.stored()).done == {*SOME[1:3]}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [1, SMALL])
def test_the_collection_in_progress_is_stored_first_or_begins_again(length: int) -> None:
    found = complete(SOME, {*SOME})
    name = found.next([*SOME, "db.z"])
    assert name is not None
    found.position = bson.encode({"_id": 1})
    found.report.collections[name].problems = ["x" * length]
    restored = Round.restored(bson.decode(bson.encode(found.stored())))
    if length == 1:
        assert (restored.current, restored.position) == (name, found.position)
        assert name in restored.report.collections
    else:
        assert (restored.current, restored.position) == (None, None)
        assert "db.z" not in restored.done


class Unread(dict[str, Compared]):
    """Findings that are never read as a whole."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all collections are read")

    def values(self) -> Any:  # noqa: ANN401
        raise AssertionError("all collections are read")

    items = values


def test_a_report_keeps_a_limited_number_of_documents_and_notes_every_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "KEPT_IN_ALL_MAX", 10)
    report = Report({}, {})
    report.collections = Unread()
    for name in SOME:
        report.put(name, Compared())
        report.note(name, (), Differences(different=keys(4)))
    report.note(SOME[0], keys(4), Differences(missing=keys(4)))
    report.collections = dict(report.collections.copy())
    assert report.kept == report.mismatches == 10
    assert [len(each.ids) for each in report.collections.values()] == [4, 4, 2] + [0] * 17
    assert [each.is_cut for each in report.collections.values()] == [False] * 2 + [True] * 18
    assert not any(each.is_equal for each in report.collections.values())
    report.keep(set(SOME[1:]))
    assert report.kept == report.mismatches == 6
    report.note(SOME[1], keys(4), Differences())
    assert report.kept == report.mismatches == 2
    assert Round.restored(Round(report).stored()).report.kept == 2


def test_a_document_that_differs_in_another_way_stays_within_the_maximum() -> None:
    found = Compared()
    found.note((), Differences(different=keys(KEPT_MAX)))
    found.note(keys(1), Differences(missing=keys(1)))
    assert len(found.ids) == KEPT_MAX
    assert not found.is_cut


def test_the_findings_of_a_round_and_of_the_report_are_counted_apart() -> None:
    """A round hands its findings to the report, and both continue to change."""
    current, report = complete(SOME[:1], {SOME[0]}), Report()
    report.put(SOME[0], current.report.collections[SOME[0]])
    for each in (report, current.report):
        each.note(SOME[0], keys(1), Differences())
        assert each.kept == each.mismatches == 0
