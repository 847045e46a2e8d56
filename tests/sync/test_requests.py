"""Requests of users at unexpected moments, and options and deployments that cannot be used."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect, PyMongoError

from shardwright.deploy.mongod import connect
from shardwright.deploy.ports import PortReservation
from shardwright.sync import ddl, handover, preparing
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.ddl import Catalog
from shardwright.sync.placing import CHUNKS_PER_SHARD, presplit
from shardwright.sync.plan import Collection, Deployment
from shardwright.sync.preparing import Options
from shardwright.sync.replication import Replication, State
from shardwright.sync.rounds import Report
from shardwright.sync.session import Sync
from shardwright.sync.verification import StandaloneVerification
from tests.sync.running import WAIT_SECONDS, Ends, run_sync
from tests.sync.surviving import SLOW_COPY, copied
from tests.sync.writers import prepare


def replicating(retry: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - a replication with the parts of a test
    """A replication in the state RUNNING; `retry` is called for refused documents."""
    sync: Any = Sync(Replication("mongodb://a", "mongodb://b"), Options())
    writer = SimpleNamespace(lock=asyncio.Lock(), retry_failures=retry)
    allowed = [SimpleNamespace(allowed=asyncio.Event(), applied=NO_TIME) for _ in range(2)]
    sync._parts = SimpleNamespace(
        writer=writer, verifier=SimpleNamespace(report=Report()), copier=allowed[0], follower=allowed[1]
    )
    sync.state = State.RUNNING
    sync._copied.set()
    return sync


def may_run(sync: Any) -> list[bool]:  # noqa: ANN401 - as above
    return [each.allowed.is_set() for each in (sync._parts.copier, sync._parts.follower)]


def test_a_pause_during_a_slow_resume_pauses() -> None:
    async def run() -> None:
        began, goes = asyncio.Event(), asyncio.Event()

        async def retry() -> None:
            began.set()
            await goes.wait()

        sync = replicating(retry)
        sync.pause()
        resuming = asyncio.create_task(sync.resume(retry_failures=True))
        await began.wait()
        sync.pause()
        goes.set()
        await resuming
        assert sync.state == State.PAUSED
        assert may_run(sync) == [False, False]
        await sync.resume()
        assert may_run(sync) == [True, True]
        await sync.close()

    asyncio.run(run())


def test_a_retry_that_fails_does_not_stop_what_was_resumed() -> None:
    async def run() -> None:
        async def retry() -> None:
            raise AutoReconnect("the target is away")

        sync = replicating(retry)
        sync.pause()
        with pytest.raises(PyMongoError):
            await sync.resume(retry_failures=True)
        assert may_run(sync) == [sync.state == State.RUNNING] * 2
        await sync.close()

    asyncio.run(run())


def test_a_commit_without_a_moment_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()

    async def fail(*_: object) -> None:
        began.set()
        raise NoMomentError("no moment")

    async def run() -> None:
        sync = replicating()
        waiting = asyncio.create_task(sync._wait_commit(sync._parts))
        sync.commit()
        async with asyncio.timeout(10):
            await began.wait()
        assert not waiting.done()
        assert (sync.state, sync.error) == (State.RUNNING, "no moment")
        sync.abort()
        await waiting
        await sync.close()

    monkeypatch.setattr(Sync, "_commit", fail)
    asyncio.run(run())


def test_the_lag_is_of_applied_changes(ends: Ends) -> None:
    """The lag grows while nothing is applied, although the stream is read and the source is alive."""
    prepare(ends.source)
    with ends.syncing() as process:
        process.wait_for(lambda progress: progress["canCommit"])
        assert run_sync(ends.directory, "pause", process.id).status == 0
        ends.source["busy"].items.insert_one({"_id": "late"})
        process.wait_for(lambda progress: progress["lagTimeSeconds"] >= 3)
        assert run_sync(ends.directory, "commit", process.id).status == 1
        assert run_sync(ends.directory, "resume", process.id).status == 0
        process.wait_for(lambda progress: progress["lagTimeSeconds"] <= 1)
        process.wait_followed(ends.source)


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "running"])
def test_an_abort_ends_a_copy(ends: Ends, *, is_paused: bool) -> None:
    documents = 12_000
    prepare(ends.source, documents)
    with ends.syncing("--workers", "1", "--batch-documents", "50") as process:
        process.wait_for(lambda progress: copied(progress) > 100)
        if is_paused:
            assert run_sync(ends.directory, "pause", process.id).status == 0
        assert run_sync(ends.directory, "abort", process.id).status == 0
        assert process.process.wait(WAIT_SECONDS) == 0, process.errors
        assert ends.target["busy"].items.count_documents({}) < documents
    with ends.syncing() as process:
        progress = process.wait_for(lambda progress: progress["canCommit"])
        assert progress["counters"]["documents_read"] < documents


def test_a_process_that_takes_over_can_be_steered(ends: Ends) -> None:
    """The former process does not change the published address of the new one."""
    prepare(ends.source)
    with ends.syncing(*SLOW_COPY) as first:
        first.wait_followed(ends.source)
        first.process.send_signal(signal.SIGSTOP)
        with ends.syncing() as second:
            second.wait_followed(ends.source)
            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(WAIT_SECONDS) != 0
            status = run_sync(ends.directory, "status", second.id)
            assert status.status == 0, status.errors
            assert json.loads(status.output)["progress"]["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--workers", "0"), "--workers"),
        (("--workers", "-1"), "--workers"),
        (("--batch-documents", "0"), "--batch-documents"),
        (("--batch-bytes", "0"), "--batch-bytes"),
        (("--memory", "0"), "--memory"),
        (("--workers", "1000"), "1000 workers with"),
        (("--shard", "busy.items={}"), "the shard key"),
        (("--shard", 'busy.items={"n": 2}'), "the shard key"),
        (("--shard", 'busy.items={"n": "text"}'), "the shard key"),
        (("--shard", 'busy.items={"n": "hashed", "in": "hashed"}'), "the shard key"),
        (("--shard", 'busy.items={"a": 1, "a.b": 1}'), "the shard key"),
        (("--shard", 'busy.none={"a": 1}'), "busy.none of --shard is not a collection"),
        (("--port", "99999"), "99999"),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_anything_is_written(
    to_cluster: Ends, options: tuple[str, ...], reason: str
) -> None:
    prepare(to_cluster.source, 10)
    done = to_cluster.run(*options)
    assert done.status not in (0, 130)
    assert reason in done.errors
    assert "Traceback" not in done.errors
    assert "busy" not in to_cluster.target.list_database_names()


@pytest.fixture(scope="module")
def standalone(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A mongod that belongs to no replica set."""
    directory = tmp_path_factory.mktemp("alone")
    with PortReservation() as ports:
        port = ports.hold_free()
        ports.release(port)
    address = f"127.0.0.1:{port}"
    words = ("--port", str(port), "--bind_ip", "127.0.0.1", "--dbpath", str(directory), "--nounixsocket")
    log = directory / "mongod.log"
    process = subprocess.Popen([mongod_binary, *words, "--logpath", str(log)], stdout=subprocess.DEVNULL)
    try:
        with connect(address, WAIT_SECONDS) as client:
            client.admin.command("ping")
        yield f"mongodb://{address}/"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("end", [0, 1], ids=["source", "target"])
def test_a_mongod_without_a_replica_set_is_refused(
    standalone: str, plain: tuple[str, str], end: int, tmp_path: Path
) -> None:
    uris = [*plain]
    uris[end] = standalone
    done = run_sync(tmp_path, *uris)
    assert done.status == 1
    assert f"the {('source', 'target')[end]} is not a member of a replica set" in done.errors
    assert "Traceback" not in done.errors


def failing_once(result: object = None) -> Callable[..., Any]:
    """A request whose first attempt fails."""
    attempts = 0

    async def request(*_: object, **__: object) -> object:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise AutoReconnect("away for a moment")
        return result

    return request


async def done(*_: object, **__: object) -> Any:  # noqa: ANN401 - as a request of any kind
    """A request without a result."""


async def nothing(*_: object) -> AsyncIterator[Any]:
    """A cursor without documents."""
    for each in list[Any]():
        yield each


def test_a_short_failure_does_not_end_a_reversal() -> None:
    ended: Any = SimpleNamespace(id="1", position=failing_once({}), fenced=done, release=done)
    begun: Any = SimpleNamespace(id="1", replace_ranges=done, fenced=done, agreement=failing_once(), record=done)
    committed = {"target": NO_TIME, "collections": {}}
    asyncio.run(handover.turn_around(ended, begun, committed, "a cluster"))


def test_a_short_failure_does_not_end_a_verification() -> None:
    def end() -> Any:  # noqa: ANN401 - a deployment of this test
        found = Deployment(False, (6, 0), "a set", {})
        return SimpleNamespace(
            deployment=failing_once(found),
            estimated_documents=failing_once(0),
            own=lambda _: SimpleNamespace(find=nothing),
            now=failing_once(NO_TIME),
        )

    verification = StandaloneVerification(Replication("mongodb://a", "mongodb://b"), end(), end(), None)
    assert asyncio.run(verification.run()).is_equal


def test_a_short_failure_does_not_end_a_preflight() -> None:
    collection = SimpleNamespace(find_one=failing_once({"_id": 1}))
    target: Any = SimpleNamespace(collection=lambda _: collection)
    assert asyncio.run(preparing._has_documents(target, "db.a")) == 1


def test_a_short_failure_does_not_end_a_rename_into_the_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(self: Catalog, *_: object) -> Collection:
        return Collection("db.a", uuid=b"1")

    async def created(self: Catalog, *_: object) -> bool:
        return True

    monkeypatch.setattr(Catalog, "_collection", found)
    monkeypatch.setattr(Catalog, "_created", created)
    monkeypatch.setattr(ddl, "planned_ranges", failing_once(["a range"]))
    added: list[Any] = []
    parts: Any = SimpleNamespace(add_ranges=done, ranges=lambda _: asyncio.sleep(0, ["a range"]), add=added.extend)
    catalog = Catalog(Replication("mongodb://a", "mongodb://b"), parts, parts, parts, parts, [parts, parts])
    asyncio.run(catalog._renamed(b"1", "db.a", parts))
    assert added == ["a range"]


def test_chunks_that_cannot_be_moved_do_not_end_a_preflight() -> None:
    async def samples() -> AsyncIterator[RawBSONDocument]:
        for each in range(1000):
            yield RawBSONDocument(bson.encode({"_id": each}))

    async def aggregate(*_: object, **__: object) -> AsyncIterator[RawBSONDocument]:
        return samples()

    asked: list[str] = []

    async def command(_: str, command: Mapping[str, Any]) -> None:
        asked.append(next(iter(command)))
        raise AutoReconnect("away for a moment")

    source: Any = SimpleNamespace(collection=lambda _: SimpleNamespace(aggregate=aggregate))
    target: Any = SimpleNamespace(command=command)
    asyncio.run(presplit(source, target, Collection("db.a", key={"_id": 1}), ["one", "two"]))
    assert asked == ["split"] * (2 * CHUNKS_PER_SHARD - 1)
