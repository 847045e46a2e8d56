"""Random writes while a range is pulled, with batches that are lost and sources that are replaced."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import HealthCheck, given, settings

from shardwright.shardd.migration.donor import clone_source, range_documents
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.sampling import many
from tests.shardd.lone_mongod import LoneMongod
from tests.shardd.migration.source_world import Document, Recipient, Transaction, World, documents_of, id_of, in_world

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

    from shardwright.shardd.migration.donor.clone_source import CloneSource

_BLOCKED_MS = 50

LOW, HIGH = {"a": 10}, {"a": 30}

ids = st.sampled_from([0, 1, 2, 3, 1.0, 2.0, "x", "y"])
keys = st.integers(0, 40)


@dataclass(frozen=True)
class Write:
    """One write of a client; ``key`` is the new shard key, or None if it does not change."""

    kind: str
    id: Any
    key: int | None = None


@dataclass(frozen=True)
class Transact:
    """Several writes in one transaction, and how it ends."""

    writes: list[Write]
    end: str


@dataclass(frozen=True)
class Step:
    """An action of the recipient or the donor, by name."""

    name: str


writes = st.one_of(
    st.builds(Write, st.just("insert"), ids, keys),
    st.builds(Write, st.just("update"), ids),
    st.builds(Write, st.just("move"), ids, keys),
    st.builds(Write, st.just("delete"), ids),
)
transactions = st.builds(
    Transact, st.lists(writes, min_size=1, max_size=4), st.sampled_from(["commit", "prepare", "abort", "stay prepared"])
)
cloning = st.sampled_from(["clone", "clone twice"]).map(Step)
catching_up = st.sampled_from(["mods", "lost mods", "resume"]).map(Step)


class Following:
    """A recipient, the source that it is pulling from, and clients."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        self.nursery = nursery
        self.cloned: dict[bytes, bytes] = {}
        self.recipient = Recipient()
        self.prepared: list[tuple[Transaction, Timestamp]] = []

    async def begin(self, **options: Any) -> None:  # noqa: ANN401 - options of start
        """Start a source."""
        self.source: CloneSource = await self.world.source()
        self.clone_number = self.mods_number = 0
        await self.source.start(**options)
        self.nursery.start_soon(self.source.run)

    async def do(self, step: Write | Transact | Step) -> None:
        """Run one step."""
        match step:
            case Write():
                await self._write_unless_blocked(step)
            case Transact():
                await self._transact(step)
            case Step("clone"):
                await self._clone(times=1)
            case Step("clone twice"):
                await self._clone(times=2)
            case Step("mods"):
                await self._mods(is_lost=False)
            case Step("lost mods"):
                await self._mods(is_lost=True)
            case Step("resume"):
                await self._resume()

    async def clone_rest(self) -> None:
        """Pull the clone to its end."""
        while not self.source.is_clone_exhausted:
            await self._clone(times=1)

    async def commit_prepared(self) -> None:
        """Commit prepared transactions, since the collection could not be dropped otherwise."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            for transaction, time in self.prepared:
                await transaction.commit_prepared(time)

    async def finish(self) -> None:
        """Pull everything."""
        while await self._mods(is_lost=False):
            pass
        self.source.close()

    async def _write_unless_blocked(self, write: Write) -> None:
        """Write, unless that conflicts with a prepared transaction, on the document or on an adjacent index entry."""
        if not self.prepared:
            await self._write(write)
            return
        try:
            await self._write(write, maxTimeMS=_BLOCKED_MS)
        except CommandError as error:
            if error.code != ErrorCode.MaxTimeMSExpired:
                raise

    async def _write(self, write: Write, **options: object) -> None:
        match write.kind:
            case "insert":
                if await self._exists(write.id, options):
                    return  # a duplicate key would end a transaction
                await self.world.insert({"_id": write.id, "a": write.key}, **options)
            case "update":
                await self.world.update({"_id": write.id}, {"$inc": {"v": 1}}, **options)
            case "move":
                await self.world.update({"_id": write.id}, {"$set": {"a": write.key}}, **options)
            case "delete":
                await self.world.delete({"_id": write.id}, **options)

    async def _exists(self, identity: object, options: Document) -> bool:
        find = {"find": "c", "filter": {"_id": identity}, **options}
        options.pop("startTransaction", None)
        return bool((await self.world.command(find))["cursor"]["firstBatch"])

    async def _transact(self, step: Transact) -> None:
        if self.prepared:
            return  # it could be in the way
        transaction = Transaction(self.world)
        for write in step.writes:
            await self._write(write, **transaction.fields)
        match step.end:
            case "commit":
                await transaction.commit()
            case "abort":
                await transaction.abort()
            case "prepare":
                await transaction.commit_prepared(await transaction.prepare())
            case "stay prepared":
                self.prepared.append((transaction, await transaction.prepare()))

    async def _clone(self, times: int) -> None:
        """Clone a batch, several times if the reply was lost.

        A document whose shard key increases while the range is read comes twice; either version will do.
        """
        for _ in range(times):
            batch = documents_of(await self.source.next_clone_batch(self.clone_number))
        self.clone_number += 1
        for document in batch:
            self.recipient.documents[id_of(document)] = document

    async def _mods(self, *, is_lost: bool) -> int:
        """Pull a batch of the modifications up to now; return its size."""
        await self.source.wait_followed(await self.world.now())
        mods = await self.source.next_mods(self.mods_number)
        if not is_lost:
            self.recipient.apply(mods)
            self.mods_number += 1
        return mods.size

    async def _resume(self) -> None:
        """Replace the source by one that resumes after the received documents; it may clone some documents again."""
        if not self.recipient.position.time:
            return
        self.source.close()
        await self.begin(position=self.recipient.position, from_key=self.world.range.max)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches of some two documents, so that writes come between them."""
    monkeypatch.setattr(range_documents, "_FIRST_BATCH_DOCUMENTS", 2)
    monkeypatch.setattr(range_documents, "BATCH_BYTES", 100)
    monkeypatch.setattr(clone_source, "_LOOKED_UP_MAX", 2)


@pytest.mark.usefixtures("small_batches")
@settings(max_examples=many(40, 15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.dictionaries(ids, keys),
    during_clone=st.lists(st.one_of(writes, transactions, cloning), max_size=12),
    afterwards=st.lists(st.one_of(writes, transactions, catching_up, catching_up), max_size=16),
)
@pytest.mark.parametrize("key", [{"a": 1}, {"a": "hashed"}], ids=["ranged", "hashed"])
def test_the_recipient_ends_with_what_the_donor_has(
    lone: LoneMongod,
    key: Document,
    before: dict[Any, int],
    during_clone: list[Write | Transact | Step],
    afterwards: list[Write | Transact | Step],
) -> None:
    async def test(world: World) -> None:
        if before:
            await world.insert(*({"_id": identity, "a": value} for identity, value in before.items()))
        async with trio.open_nursery() as nursery:
            following = Following(world, nursery)
            await following.begin()
            try:
                for step in during_clone:
                    await following.do(step)
                await following.clone_rest()
                for step in afterwards:
                    await following.do(step)
            finally:
                await following.commit_prepared()
            await following.finish()
        assert following.recipient.documents == await world.documents()

    low, high = (LOW, HIGH) if key["a"] == 1 else ({"a": -(1 << 62)}, {"a": 1 << 62})
    in_world(lone, test, db="model", key=key, low=low, high=high)
