"""Delay of a daemon's reports of its mongod's role changes, and the effect of a failover on a driver."""

import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo.errors import AutoReconnect

from tests.daemon.sidecar.hello_stream import HelloStream
from tests.shardd.mini_cluster import Member, Set, replica_set

NOTICE_SECONDS_MAX = 0.1


@pytest.fixture
def streams(alone: Set) -> Iterator[dict[str, HelloStream]]:
    """A stream of the mongod and one of its daemon, by address; the mongod is primary again afterwards."""
    (member,) = alone.members
    opened = {name: HelloStream(name) for name in (member.mongod_plan.address, member.address)}
    yield opened
    for stream in opened.values():
        stream.socket.close()
    with member.mongod_client() as mongod:
        if not mongod.admin.command("hello")["isWritablePrimary"]:
            mongod.admin.command({"replSetFreeze": 0})
    with member.client() as client:
        while not client.admin.command("hello")["isWritablePrimary"]:
            client.admin.command("ping")


def lag_of_the_daemon(member: Member, streams: dict[str, HelloStream], *, is_primary: bool) -> float:
    """Return the seconds between the mongod's and its daemon's report of a role change."""
    told: dict[str, float] = {}
    while len(told) < len(streams):
        waiting = {stream.socket: name for name, stream in streams.items() if name not in told}
        readable, _, _ = select.select(list(waiting), [], [], 30)
        assert readable
        now = time.monotonic()
        for name in (waiting[each] for each in readable):
            if streams[name].receive()["isWritablePrimary"] is is_primary:
                told[name] = now
            else:  # another change, such as the period before a new primary accepts writes
                streams[name].wait_for_news()
    return told[member.address] - told[member.mongod_plan.address]


def test_a_step_down_is_reported_within_100_ms_of_mongod(alone: Set, streams: dict[str, HelloStream]) -> None:
    (member,) = alone.members
    for stream in streams.values():
        stream.wait_for_news()
    with member.mongod_client() as mongod:
        mongod.admin.command({"replSetStepDown": 60, "force": True})
        assert lag_of_the_daemon(member, streams, is_primary=False) < NOTICE_SECONDS_MAX


def test_a_step_up_is_reported_within_100_ms_of_mongod(alone: Set, streams: dict[str, HelloStream]) -> None:
    (member,) = alone.members
    for stream in streams.values():
        stream.wait_for_news()
    with member.mongod_client() as mongod:
        mongod.admin.command({"replSetStepDown": 60, "force": True})
        lag_of_the_daemon(member, streams, is_primary=False)
        for stream in streams.values():
            stream.wait_for_news()
        # The only member of its set is elected as soon as it may be.
        mongod.admin.command({"replSetFreeze": 0})
        assert lag_of_the_daemon(member, streams, is_primary=True) < NOTICE_SECONDS_MAX


def test_a_driver_follows_a_failover_and_loses_no_acknowledged_write(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    progress = threading.Semaphore(0)
    stop = threading.Event()
    with replica_set(tmp_path, members=3) as three, three.client(w="majority", retryWrites=True) as client:

        def write() -> None:
            number = 0
            while not stop.is_set():
                try:
                    client.db.c.insert_one({"_id": number})
                except AutoReconnect:
                    pass  # not acknowledged: it may be there or not
                else:
                    acknowledged.append(number)
                    progress.release()
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_for(progress, 50)
            first = client.primary
            primary = next(each for each in three.members if each.address == f"127.0.0.1:{first[1] if first else 0}")
            primary.mongod.stop(signal.SIGKILL)
            wait_for(progress, 50)
            assert client.primary not in (first, None)
        finally:
            stop.set()
            writer.join()
        found = {document["_id"] for document in client.db.c.find()}
        assert found >= set(acknowledged)


def wait_for(progress: threading.Semaphore, count: int) -> None:
    """Wait until ``count`` more writes have been acknowledged."""
    for _ in range(count):
        assert progress.acquire(timeout=60), "writing did not continue"
