"""A recipient's persisted progress with a donor, and the order of its writes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import bson
import pytest
import trio
from bson.timestamp import Timestamp

from shardwright.shardd.resharding import donor_pull
from shardwright.shardd.resharding.donor_pull import DonorPull
from shardwright.shardd.resharding.local_documents import PullProgress
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_operation import ReshardingStatistics

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext
    from shardwright.shardd.resharding.local_documents import RecipientWriter
    from shardwright.sharding.resharding_participation import Participation

OPENED_AT = Timestamp(5, 1)
BATCH = [bson.encode({"_id": 1})]


class Session:
    """A source that has one batch of documents, and no changes."""

    def __init__(self, *_: object) -> None:
        self._batches = [(BATCH, bson.encode({"key": 1}))]

    async def open(self, progress: PullProgress) -> Timestamp:
        return progress.position or OPENED_AT

    async def next_clone_batch(self) -> tuple[list[bytes], bytes | None]:
        return self._batches.pop() if self._batches else ([], None)

    async def next_mods(self, _: object) -> None:
        await trio.sleep_forever()


class Connection:
    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


class Writer:
    """Records its writes."""

    def __init__(self) -> None:
        self.written: list[tuple[list[bytes], PullProgress]] = []

    async def apply(self, _: str, gone: Sequence[bytes], documents: Sequence[bytes], progress: PullProgress) -> None:
        assert not gone
        self.written.append((list(documents), progress))


async def hang_while(_: str) -> None:
    await trio.lowlevel.checkpoint()


def pulled(monkeypatch: pytest.MonkeyPatch, progress: PullProgress) -> list[tuple[list[bytes], PullProgress]]:
    """Return the writes of a pull that begins with some progress, until its clone is complete."""
    monkeypatch.setattr(donor_pull, "_PullSession", Session)
    monkeypatch.setattr(donor_pull, "DonorConnection", Connection)
    context: Any = SimpleNamespace(
        require_identity=lambda: SimpleNamespace(shard_name="recipient"),
        fail_points=SimpleNamespace(hang_while=hang_while),
    )
    participation = cast("Participation", SimpleNamespace(id=uuid4(), namespace=Namespace("db", "c")))
    writer = Writer()

    async def test() -> None:
        pull = DonorPull(
            cast("ShardContext", context),
            participation,
            cast("RecipientWriter", writer),
            progress,
            None,
            ReshardingStatistics(),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull.run)
            with trio.fail_after(10):
                await pull.cloned.wait()
            nursery.cancel_scope.cancel()

    trio.run(test)
    return writer.written


def test_where_to_follow_from_is_persisted_before_any_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a document stays for ever that was written before a crash, and deleted on the donor after it."""
    begun, first, _ = pulled(monkeypatch, PullProgress("donor"))
    assert begun == ([], PullProgress("donor", position=OPENED_AT))
    assert first[0] == BATCH
    assert first[1].position == OPENED_AT


def test_a_resumed_pull_follows_from_where_the_former_one_began(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = Timestamp(3, 1)
    first, _ = pulled(monkeypatch, PullProgress("donor", position=earlier))
    assert (first[0], first[1].position) == (BATCH, earlier)
