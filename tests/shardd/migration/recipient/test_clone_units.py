"""The parts of a recipient that need no server: pieces of a clone, checkpoints, the status."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from typing import Any
from uuid import uuid4

import bson
import pytest
import trio
import trio.testing
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.daemon.operation_metrics import OK, OperationMetrics
from shardwright.shardd.migration.active_migrations import HEAVY_OPERATIONS_PER_SECOND, ClientLoad, MigrationAttempt
from shardwright.shardd.migration.recipient.clone import (
    PIECE_BYTES_MAX,
    PIECE_DOCUMENTS_MAX,
    WRITERS,
    ClonedPrefix,
    Cloner,
    Piece,
    cut,
    run_together,
)
from shardwright.shardd.migration.recipient.donor_link import CloneBatch
from shardwright.shardd.migration.recipient.recipient_state import MigrationCheckpoint
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest, ReceiveState, ReceiveStatus
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, array_of_documents, element, find, from_elements

PATTERN = ShardKeyPattern.from_mapping({"a": 1})
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.sampled_from([10, 1_000, PIECE_BYTES_MAX // 2, PIECE_BYTES_MAX + 1]), max_size=12), st.booleans())
def test_pieces_have_all_documents_in_order_and_are_not_too_big(sizes: list[int], has_many: bool) -> None:
    documents = [b"x" * size for size in sizes] + [b"y"] * (2 * PIECE_DOCUMENTS_MAX + 1) * has_many
    pieces = list(cut(documents))
    assert [document for piece, _ in pieces for document in piece] == documents
    for piece, size in pieces:
        assert size == sum(map(len, piece))
        assert 1 <= len(piece) <= PIECE_DOCUMENTS_MAX
        assert size <= PIECE_BYTES_MAX or len(piece) == 1


class _Donor:
    """Hands out one batch with a document for each piece, and then the empty one."""

    def __init__(self, pieces: int, *, is_busy: bool) -> None:
        documents = [bson.encode({"_id": n, "a": n}) for n in range(pieces * PIECE_DOCUMENTS_MAX)]
        self._is_busy = is_busy
        self._batches = [self._batch(documents), self._batch([])]

    def _batch(self, documents: list[bytes]) -> CloneBatch:
        reply = from_elements(element(b"objects", ARRAY, array_of_documents(documents)))
        span = find(reply, b"objects")
        assert span is not None
        return CloneBatch(reply, span, None, self._is_busy)

    async def clone_batch(self, number: int) -> CloneBatch:
        return self._batches[number]


class _Writer:
    """Takes a tenth of a second for each piece."""

    async def insert(self, session: object, documents: list[bytes]) -> list[bytes]:
        await trio.sleep(0.1)
        return documents


class _Sessions:
    @asynccontextmanager
    async def session(self) -> AsyncIterator[object]:
        yield object()


@pytest.mark.parametrize(
    ("is_donor_busy", "own_operations", "seconds"),
    [(False, 0, 0.2), (True, 0, 0.8), (False, 10_000, 0.5)],  # There are none any more after the first rest.
)
async def test_writers_rest_while_clients_keep_a_shard_busy(
    is_donor_busy: bool, own_operations: int, seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    operations = OperationMetrics("test", ("find",))
    load = ClientLoad(operations, trio.current_time)
    await trio.sleep(1)
    for _ in range(own_operations):
        operations.observe("find", OK, 0.001)
    donor = _Donor(2 * WRITERS, is_busy=is_donor_busy)
    prefix, status = ClonedPrefix(), ReceiveStatus(None)
    cloner = Cloner(donor.clone_batch, _Sessions(), _Writer(), status, prefix, load)  # type: ignore[arg-type]
    began = trio.current_time()
    await cloner.run(await donor.clone_batch(0))
    assert status.cloned == prefix.documents == 2 * WRITERS * PIECE_DOCUMENTS_MAX
    assert trio.current_time() - began == pytest.approx(seconds)


def test_the_client_load_is_measured_since_the_last_look() -> None:
    now = 0.0
    operations = OperationMetrics("test", ("find", "_migrateClone"))
    load = ClientLoad(operations, lambda: now)

    def seen(seconds: float, command: str, count: int) -> bool:
        nonlocal now
        now += seconds
        for _ in range(count):
            operations.observe(command, OK, 0.001)
        return load.is_heavy

    assert not seen(1, "find", HEAVY_OPERATIONS_PER_SECOND - 1)
    assert seen(1, "find", HEAVY_OPERATIONS_PER_SECOND)
    # Too soon for another measurement.
    assert seen(0.01, "find", 0)
    assert not seen(1, "_migrateClone", 10 * HEAVY_OPERATIONS_PER_SECOND)
    assert seen(0.5, "find", HEAVY_OPERATIONS_PER_SECOND)


def piece(number: int, *keys: int) -> Piece:
    documents = [bson.encode({"_id": key, "a": key}) for key in keys]
    return Piece(number, documents, sum(map(len, documents)))


SIZE = len(bson.encode({"_id": 1, "a": 1}))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_checkpoint_covers_the_pieces_before_the_first_gap(order: tuple[int, ...]) -> None:
    pieces = [piece(0, 1, 2), piece(1, 3, 4), piece(2, 5, 6)]
    prefix = ClonedPrefix()
    finished: set[int] = set()
    assert prefix.checkpoint(PATTERN) is None
    for number in order:
        prefix.finish(pieces[number])
        finished.add(number)
        safe = next(count for count in range(4) if count not in finished)
        expected = (bson.encode({"a": 2 * safe}), 2 * safe - 1, (2 * safe - 1) * SIZE) if safe else None
        assert prefix.checkpoint(PATTERN) == expected


def test_documents_with_the_key_of_a_checkpoint_are_not_covered() -> None:
    prefix = ClonedPrefix(100, 1_000)
    prefix.finish(piece(0, 1, 2, 2, 2))
    assert prefix.checkpoint(PATTERN) == (bson.encode({"a": 2}), 101, 1_000 + SIZE)


REQUEST = ReceiveRequest(
    migration_id=uuid4(),
    session_id="donor_sh0_2",
    namespace=Namespace("db", "c"),
    collection_uuid=uuid4(),
    pattern=PATTERN,
    range=ChunkRange.of(PATTERN, bson.encode({"a": 0}), bson.encode({"a": 10})),
    donor="donor",
    donor_connection_string="donor/localhost:1",
    recipient="sh0",
    lsid={},
    txn_number=1,
    secondary_throttle=False,
    write_concern={},
    attempts=(MigrationAttempt("donor_sh0_1", NOW, NOW), MigrationAttempt("donor_sh0_2", NOW)),
)


def checkpoint(*sessions: str) -> MigrationCheckpoint:
    assert REQUEST.collection_uuid is not None
    begun = MigrationCheckpoint.begin(REQUEST, REQUEST.collection_uuid, NOW)
    attempts = tuple(MigrationAttempt(f"donor_sh0_{each}", NOW) for each in sessions)
    return replace(begun, attempts=attempts).with_progress(bson.encode({"a": 5}), Timestamp(1, 1), 50, 500)


@pytest.mark.parametrize(
    ("own", "donors", "is_trusted"),
    [
        ("1", "12", True),
        ("12", "123", True),
        ("13", "1234", True),  # an attempt that never came here
        ("2", "123", True),
        ("1", "23", False),
        ("12", "13", False),
        ("21", "123", False),
    ],
)
def test_a_checkpoint_is_trusted_if_the_donor_remembers_its_attempts(own: str, donors: str, is_trusted: bool) -> None:
    request = replace(REQUEST, attempts=tuple(MigrationAttempt(f"donor_sh0_{each}", NOW) for each in donors))
    assert checkpoint(*own).is_trusted_by(request) is is_trusted


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": Namespace("db", "d")},
        {"donor": "other"},
        {"collection_uuid": uuid4()},
        {"range": ChunkRange.of(PATTERN, bson.encode({"a": 0}), bson.encode({"a": 9}))},
    ],
)
def test_a_checkpoint_of_another_migration_is_not_trusted(change: dict[str, Any]) -> None:
    assert checkpoint("1").is_trusted_by(REQUEST)
    assert not checkpoint("1").is_trusted_by(replace(REQUEST, **change))


def test_a_checkpoint_without_a_key_or_a_position_is_not_trusted() -> None:
    assert not replace(checkpoint("1"), cloned_up_to=None).is_trusted_by(REQUEST)
    assert not replace(checkpoint("1"), position=None).is_trusted_by(REQUEST)


@pytest.mark.parametrize(
    "written",
    [
        checkpoint("1"),
        checkpoint("1").with_progress(None, None, 0, 0),
        checkpoint("1").with_new_attempt(REQUEST, NOW).with_progress(bson.encode({"a": 6}), Timestamp(1, 2), 60, 7),
    ],
)
def test_a_persisted_checkpoint_is_read_back(written: MigrationCheckpoint) -> None:
    stored = bson.encode(written.to_document())
    document: dict[str, Any] = bson.decode(stored, codec_options=bson.CodecOptions(tz_aware=True))
    assert MigrationCheckpoint.from_document(document) == written


def test_every_attempt_counts_its_own_documents() -> None:
    resumed = (
        checkpoint("1").with_new_attempt(REQUEST, NOW).with_progress(bson.encode({"a": 6}), Timestamp(1, 2), 60, 7)
    )
    assert [each.documents for each in resumed.attempts] == [50, 10]
    assert [each.end for each in resumed.attempts] == [NOW, None]


def test_an_idle_status_is_that_of_a_genuine_shard() -> None:
    """As observed on MongoDB 6.0.5."""
    assert list(ReceiveStatus(None).report().items()) == list(
        {
            "active": False,
            "ns": "",
            "from": "",
            "fromShardId": "",
            "min": {},
            "max": {},
            "shardKeyPattern": {},
            "supportsCriticalSectionDuringCatchUp": True,
            "state": "ready",
            "counts": {"cloned": 0, "clonedBytes": 0, "catchup": 0, "steady": 0},
        }.items()
    )


def test_a_failure_is_reported_as_by_a_genuine_shard() -> None:
    status = ReceiveStatus(REQUEST)
    assert list(status.report())[:2] == ["active", "sessionId"]
    status.fail(CommandError(ErrorCode.CannotCreateCollection, "aborting"))
    status.end()
    report = status.report()
    assert (report["active"], report["state"]) == (False, "fail")
    assert report["errmsg"] == "migrate failed: CannotCreateCollection: aborting"
    assert "sessionId" not in report
    assert list(report)[-2:] == ["errmsg", "counts"]


async def test_waiting_for_steady_ends_with_the_event_or_after_a_second(autojump_clock: trio.testing.MockClock) -> None:
    status = ReceiveStatus(REQUEST)
    began = trio.current_time()
    await status.wait_steady_or_done()
    assert trio.current_time() - began == 1

    async def become_steady() -> None:
        await trio.sleep(0.25)
        status.enter(ReceiveState.CLONE)
        await trio.sleep(0.25)
        status.enter(ReceiveState.STEADY)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(become_steady)
        began = trio.current_time()
        await status.wait_steady_or_done()
        assert trio.current_time() - began == 0.5


async def test_the_first_failure_ends_all_work(autojump_clock: trio.testing.MockClock) -> None:
    ended: list[str] = []

    async def work(name: str, seconds: float, error: CommandError | None = None) -> None:
        try:
            await trio.sleep(seconds)
            if error is not None:
                raise error
        finally:
            ended.append(name)

    began = trio.current_time()
    await run_together(lambda: work("one", 1), lambda: work("two", 2), meanwhile=lambda: work("background", 9))
    assert ended == ["one", "two", "background"]
    assert trio.current_time() - began == 2
    ended.clear()
    error = CommandError(ErrorCode.OperationFailed, "it failed")
    with pytest.raises(CommandError) as raised:
        await run_together(lambda: work("fails", 1, error), lambda: work("other", 5))
    assert raised.value is error
    with pytest.raises(CommandError):
        await run_together(lambda: work("main", 5), meanwhile=lambda: work("background", 1, error))
    assert ended == ["fails", "other", "background", "main"]
