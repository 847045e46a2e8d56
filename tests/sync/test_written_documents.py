"""Comparison of the documents that were written since the last comparison, before a commit and after errors."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from bson.timestamp import Timestamp

from shardwright.sync import handover, verification
from shardwright.sync.changes import Value
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


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Value]]:
    """The compared documents by namespace; all are equal."""
    found: dict[str, set[Value]] = {}

    async def compare(*arguments: Any) -> Differences:  # noqa: ANN401
        found.setdefault(arguments[2], set()).update(arguments[3])
        return Differences()

    monkeypatch.setattr(verification, "ids_compared", compare)
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
