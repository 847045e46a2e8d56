"""Commits that fail or are interrupted, and the block of users' writes at the source."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from shardwright.sync import handover, session
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.handover import CommitError
from shardwright.sync.preparing import Options
from shardwright.sync.replication import Replication, State
from shardwright.sync.session import Sync
from shardwright.sync.store import LeaseLostError
from tests.sync.running import Ends
from tests.sync.writers import prepare

STEPS = ("blocked", "drain", "stored", "expire", "committed")
AWAY = AutoReconnect("the target is away")


class Committing:
    """A replication at its commit.

    Attributes:
        blocked: the requests to block or open the source.
        errors: errors of steps; an error of ``position`` follows the first one of another step.
        stored: the target's document.
    """

    id, term = "1", 3

    def __init__(self, **errors: BaseException) -> None:
        self.blocked: list[bool] = []
        self.errors = errors
        self.stored: dict[str, Any] = {"term": self.term}
        self._has_failed = False

    def step(self, name: str) -> None:
        if (error := self.errors.pop(name, None)) is not None:
            self._has_failed = True
            raise error

    async def position(self) -> Mapping[str, Any]:
        if self._has_failed:
            self.step("position")
        return dict(self.stored)

    async def fenced(self, _: object, __: object, changes: Mapping[str, Any]) -> None:
        if "committed" in changes:
            self.step("committed")
        self.stored |= changes
        if "committed" in changes:
            self.step("answer")

    async def block(self, _: object, *, is_blocked: bool) -> None:
        self.blocked.append(is_blocked)
        if is_blocked:
            self.step("blocked")

    async def drain(self, *_: object) -> tuple[Timestamp, Timestamp]:
        self.step("drain")
        return Timestamp(1, 1), Timestamp(1, 1)

    async def stored_of_target(self) -> Mapping[str, Any]:
        self.step("stored")
        return {}

    async def let_expire(self) -> None:
        self.step("expire")

    async def hand_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handover, "block_writes", self.block)
        monkeypatch.setattr(handover, "_drain", self.drain)
        parts: Any = SimpleNamespace(store=self, catalog=self)
        end: Any = None
        await handover.hand_over(parts, end, end, blocks_writes=True)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (AWAY, AutoReconnect),
        (OperationFailure("no", 13), OperationFailure),
        (NoMomentError("no"), CommitError),
        (CommitError("no"), CommitError),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_commit_that_fails_does_not_leave_the_source_blocked(
    step: str, error: BaseException, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Committing(**{step: error})
    with pytest.raises(raised):
        asyncio.run(commit.hand_over(monkeypatch))
    assert commit.blocked == [True, False]
    assert not commit.stored["blocked"]


def test_a_commit_that_is_recorded_leaves_the_source_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the last write may be lost."""
    for commit in (Committing(), Committing(answer=AWAY)):
        with suppress(AutoReconnect):
            asyncio.run(commit.hand_over(monkeypatch))
        assert commit.blocked == [True]
        assert commit.stored["committed"]


def test_the_source_stays_blocked_if_the_commit_may_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for step, blocked in (("drain", [True, False]), ("committed", [True])):
        commit = Committing(**{step: AWAY, "position": AWAY})
        with pytest.raises(AutoReconnect):
            asyncio.run(commit.hand_over(monkeypatch))
        assert commit.blocked == blocked


def test_a_process_that_has_lost_its_lease_leaves_the_block_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Committing(drain=LeaseLostError("another process has taken over"))
    commit.stored["term"] = commit.term + 1
    with pytest.raises(LeaseLostError):
        asyncio.run(commit.hand_over(monkeypatch))
    assert commit.blocked == [True]


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "not committed"])
def test_the_next_process_lifts_the_block_of_an_interrupted_commit(
    monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    async def run() -> None:
        commit = Committing()
        commit.stored["blocked"] = not is_committed
        commit.stored["committed"] = {"source": Timestamp(1, 1)} if is_committed else None

        async def for_ever(*_: object) -> None:
            await asyncio.Event().wait()

        async def replicate(*_: object, **__: object) -> None:
            assert commit.blocked == [False]

        commit.keep_lease = for_ever  # type: ignore[attr-defined]
        monkeypatch.setattr(handover, "block_writes", commit.block)
        monkeypatch.setattr(Sync, "_replicate", replicate)
        sync = Sync(Replication("mongodb://a", "mongodb://b"), Options())
        sync.state = State.RUNNING
        store: Any = commit
        await sync._run(store, continuous=True, is_lost=False)
        await sync.close()
        assert commit.blocked == ([] if is_committed else [False])
        assert (sync.state, sync.error) == (
            (State.COMMITTED, None) if is_committed else (State.RUNNING, "a commit was interrupted")
        )

    asyncio.run(run())


def test_a_comparison_that_a_user_waits_for_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the lease is lost and acquired again, or the replication is committed."""

    async def run() -> None:
        began = asyncio.Event()

        async def for_ever(*_: object) -> None:
            await asyncio.Event().wait()

        async def again() -> None:
            began.set()
            await asyncio.Event().wait()

        async def copy(sync: Sync, _: object) -> None:
            sync._copied.set()

        follower = SimpleNamespace(read=for_ever, apply=for_ever)
        verifier = SimpleNamespace(run=for_ever, again=again)
        copier = SimpleNamespace(run_added=for_ever)
        catalog = SimpleNamespace(build_for_ever=for_ever)
        parts = SimpleNamespace(
            follower=follower, verifier=verifier, copier=copier, catalog=catalog, start={}, notes=()
        )
        monkeypatch.setattr(session, "prepared", lambda *_, **__: asyncio.sleep(0, parts))
        monkeypatch.setattr(Sync, "_copy", copy)
        for name in ("_record_for_ever", "_watch_source", "_compare_catalogs_for_ever"):
            monkeypatch.setattr(Sync, name, for_ever)
        sync = Sync(Replication("mongodb://a", "mongodb://b"), Options())
        sync.state = State.RUNNING
        store: Any = None
        replicating = asyncio.create_task(sync._replicate(store, continuous=True, is_lost=False))
        async with asyncio.timeout(10):
            await sync._copied.wait()
            verifying = asyncio.create_task(sync.verify())
            await began.wait()
            replicating.cancel()
            with pytest.raises(CommitError, match="verify again"):
                await verifying
        await sync.close()

    asyncio.run(run())


def test_the_source_accepts_writes_after_the_process_of_a_commit_was_killed(ends: Ends) -> None:
    prepare(ends.source, 10)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        process.kill()
    ends.target["shardwright"]["sync"].update_one({"_id": process.id}, {"$set": {"blocked": True}})
    ends.source.admin.command({"setUserWriteBlockMode": 1, "global": True})
    with ends.syncing() as process:
        progress = process.wait_for(lambda progress: progress["canCommit"])
        assert progress["error"] == "a commit was interrupted"
        ends.source["busy"]["items"].insert_one({"_id": "not blocked"})
