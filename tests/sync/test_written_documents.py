"""Comparison of the documents that were written since the last comparison, before a commit and after errors."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from shardwright.sync import handover, verification
from shardwright.sync.changes import Value
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.plan import Collection
from shardwright.sync.ranges import Differences
from shardwright.sync.rounds import TOUCHED_MAX
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
    return SimpleNamespace(verifier=verifier, follower=follower, copier=SimpleNamespace(wait_done=done))


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
