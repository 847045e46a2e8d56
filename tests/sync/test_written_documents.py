"""Comparison of the documents that were written since the last comparison, before a commit and after errors."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from shardwright.sync import handover, verification
from shardwright.sync.changes import Value
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.following import Follower
from shardwright.sync.plan import Collection
from shardwright.sync.ranges import Differences
from shardwright.sync.replication import Filter
from shardwright.sync.rounds import TOUCHED_MAX, Round
from shardwright.sync.verification import Verifier
from shardwright.sync.writing import Writer

NOW = Timestamp(1, 1)
NAMES = ("db.a", "db.b", "db.c")


async def done(*_: object, **__: object) -> Any:  # noqa: ANN401 - as a request of any kind
    """A request without a result."""
    await asyncio.sleep(0)


def ids(count: int) -> list[Value]:
    return [(16, each.to_bytes(4, "little")) for each in range(count)]


def following() -> Verifier:
    """The verification of a replication whose ends are equal, after its first round."""
    end: Any = SimpleNamespace(now=lambda: asyncio.sleep(0, NOW))
    store: Any = SimpleNamespace(id="1", fenced=done, verification=lambda: asyncio.sleep(0, {}))
    follower: Any = SimpleNamespace(
        token=b"",
        allowed=asyncio.Event(),
        note_idle=lambda _: None,
        wait_consistent=lambda *_: asyncio.sleep(0, (NOW,) * 2),
    )
    catalog: Any = SimpleNamespace(
        present={name: Collection(name, kind="view") for name in NAMES}, problems=no_problems
    )
    follower.allowed.set()
    found = Verifier(end, end, store, Writer(end, end, store), catalog, follower)
    found.is_covered = True
    return found


async def no_problems(_: str) -> list[str]:
    await asyncio.sleep(0)
    return []


@dataclass
class Comparisons:
    """Comparisons of documents that are all equal.

    Attributes:
        found: the compared documents by namespace.
        errors: errors of the next comparisons by namespace.
    """

    found: dict[str, set[Value]] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)

    async def compare(self, *arguments: Any) -> Differences:  # noqa: ANN401
        if (error := self.errors.pop(arguments[2], None)) is not None:
            raise error
        self.found.setdefault(arguments[2], set()).update(arguments[3])
        return Differences()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    found = Comparisons()
    monkeypatch.setattr(verification, "ids_compared", found.compare)
    return found


def draining(verifier: Verifier) -> Any:  # noqa: ANN401 - the parts of a replication
    follower = SimpleNamespace(is_sharded=False, wait_applied=done)
    copier, catalog = SimpleNamespace(wait_done=done), SimpleNamespace(wait_built=done)
    return SimpleNamespace(verifier=verifier, follower=follower, copier=copier, catalog=catalog)


@pytest.mark.usefixtures("compared")
def test_a_commit_fails_after_too_many_writes_since_the_comparison() -> None:
    async def run() -> None:
        verifier = following()
        end: Any = SimpleNamespace(advance=done, now=done)
        await handover._drain(draining(verifier), end, end)
        verifier._writer.touched.note("db.a", ids(TOUCHED_MAX + 1))
        with pytest.raises(handover.CommitError, match="too many documents"):
            await handover._drain(draining(verifier), end, end)

    asyncio.run(run())


@pytest.mark.usefixtures("compared")
def test_a_comparison_before_a_commit_continues_after_too_many_writes() -> None:
    async def run() -> None:
        verifier = following()
        verifier._writer.touched.note("db.a", ids(TOUCHED_MAX + 1))
        running = asyncio.create_task(verifier.run())
        async with asyncio.timeout(10):
            await verifier.complete()
        assert verifier.is_covered
        assert verifier.rounds > 0
        running.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "error",
    [NoMomentError("no"), OperationFailure("no", 13), asyncio.CancelledError()],
    ids=lambda each: type(each).__name__,
)
def test_documents_stay_noted_until_they_are_compared(error: BaseException, compared: Comparisons) -> None:
    async def run() -> None:
        verifier = following()
        for name in NAMES:
            verifier._writer.touched.note(name, ids(3))
        compared.errors["db.b"] = error
        with pytest.raises(type(error)):
            await verifier.recheck()
        assert compared.found.keys() == {"db.a"}
        compared.found.clear()
        await verifier.recheck()
        assert compared.found == {"db.b": set(ids(3)), "db.c": set(ids(3))}

    asyncio.run(run())


def test_documents_stay_noted_if_their_state_does_not_come(
    compared: Comparisons, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise AutoReconnect("away for a moment")

    async def run() -> None:
        verifier = following()
        verifier._writer.touched.note("db.a", ids(3))
        with monkeypatch.context() as patch:
            patch.setattr(verifier._follower, "wait_consistent", fail)
            with pytest.raises(AutoReconnect):
                await verifier.recheck()
        await verifier.recheck()
        assert compared.found == {"db.a": set(ids(3))}

    asyncio.run(run())


class Deletions:
    """A change stream with deletions of different documents."""

    resume_token: Mapping[str, str] = {"_data": "82" + "00000001" * 2}

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0

    async def __aenter__(self) -> Any:  # noqa: ANN401 - itself
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""

    async def try_next(self) -> RawBSONDocument:
        self.read += 1
        time = NOW if self.read <= self.count else Timestamp(9, 9)
        key = {"_id": self.read}
        place = {"db": "db", "coll": "a"}
        event = {"_id": {}, "operationType": "delete", "clusterTime": time, "ns": place, "documentKey": key}
        return RawBSONDocument(encode(event))


def resuming(*, deletions: int, is_lost: bool = False) -> tuple[Verifier, Deletions]:
    """The verification of a process that continues an earlier one, and the changes since then."""
    stream = Deletions(deletions)

    async def watch(**_: object) -> Deletions:
        if is_lost:
            raise OperationFailure("the history is lost", 286)
        return stream

    verifier = following()
    source: Any = SimpleNamespace(client=SimpleNamespace(watch=watch))
    other: Any = None
    follower = Follower(source, other, verifier._writer, other, other, Filter(), is_sharded=False)
    follower.applied = Timestamp(5, 5)
    verifier._follower = follower
    return verifier, stream


def stored(**fields: object) -> dict[str, object]:
    """The stored verification of a process that ended in the middle of a round."""
    found = Round(done={"db.a"}).stored()
    return {"round": found, "report": found, "rounds": 1, "is_covered": True, "token": encode({}), **fields}


@pytest.mark.parametrize(
    ("deletions", "is_lost", "fields", "is_full"),
    [
        (10, False, {}, False),
        (3 * TOUCHED_MAX, False, {}, True),
        (0, True, {}, True),
        (10, False, {"is_full": True}, True),
    ],
    ids=["few", "too many", "history lost", "too many before"],
)
def test_only_a_whole_round_compares_more_written_documents_than_are_noted(
    deletions: int, fields: Mapping[str, object], *, is_lost: bool, is_full: bool
) -> None:
    async def run() -> None:
        verifier, stream = resuming(deletions=deletions, is_lost=is_lost)
        verifier._store.verification = lambda: asyncio.sleep(0, stored(**fields))  # type: ignore[method-assign]
        await verifier._restore()
        touched = verifier._writer.touched
        assert touched.is_full == is_full
        assert stream.read <= TOUCHED_MAX + 1
        if not is_full:
            assert sum(map(len, touched.take().values())) == deletions

    asyncio.run(run())


@pytest.mark.usefixtures("compared")
def test_too_many_written_documents_are_stored_with_a_round() -> None:
    async def run() -> None:
        verifier = following()
        saved: dict[str, object] = {}

        async def save(_: object, __: object, fields: Mapping[str, object]) -> None:
            saved.update(fields)

        verifier._store.fenced = save  # type: ignore[assignment, method-assign]
        verifier._writer.touched.note("db.a", ids(TOUCHED_MAX + 1))
        await verifier.recheck()
        assert saved["is_full"]

    asyncio.run(run())
