"""The stream of hellos with which drivers monitor a server: one request, many replies."""

import signal
from dataclasses import dataclass
from typing import Any

import bson
import pytest

from shardwright.wire.message import EXHAUST_ALLOWED, MORE_TO_COME
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import END_SECONDS_MAX, extra_router
from tests.local_cluster import RunningCluster

AWAIT_MS = 50


@dataclass(frozen=True)
class Frame:
    """A received OP_MSG."""

    id: int
    response_to: int
    flags: int
    body: dict[str, Any]

    @classmethod
    def receive(cls, client: RawClient) -> "Frame":
        """The next one on a connection."""
        data = client.receive()
        flags = int.from_bytes(data[16:20], "little")
        return cls(_int32(data, 4), _int32(data, 8), flags, dict(bson.decode(data[21:])))


def _int32(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 4], "little", signed=True)


def ask_for_stream(client: RawClient, version: dict[str, Any], *, await_ms: int = AWAIT_MS) -> None:
    """Request a hello whenever the server's version changes, and periodically."""
    hello = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": await_ms}
    client.send_command(hello, flags=EXHAUST_ALLOWED)


@pytest.mark.parametrize("name", ["router.0", "shard0.0.shardd", "shard0.0.mongod"])
def test_stream_continues_by_itself(cluster: RunningCluster, name: str) -> None:
    """After every wait there is a reply with ``moreToCome`` that answers the previous reply, as in mongod."""
    with raw_client(cluster.address(name)) as client:
        first = client.command({"hello": 1})
        ask_for_stream(client, first["topologyVersion"])
        frames = [Frame.receive(client) for _ in range(4)]
    for frame in frames:
        assert frame.flags == MORE_TO_COME
        assert frame.body["ok"] == 1.0
        assert frame.body["topologyVersion"] == first["topologyVersion"]
        assert frame.body["connectionId"] == first["connectionId"]
    assert [frame.response_to for frame in frames[1:]] == [frame.id for frame in frames[:-1]]
    assert (frames[-1].body["localTime"] - frames[0].body["localTime"]).total_seconds() >= 2 * AWAIT_MS / 1000


def test_a_version_of_another_server_is_answered_at_once(cluster: RunningCluster) -> None:
    with raw_client(cluster.address("router.0")) as client:
        known = client.command({"hello": 1})["topologyVersion"]
        stranger = {**known, "processId": bson.ObjectId()}
        # Only a change could end this wait.
        ask_for_stream(client, stranger, await_ms=600_000)
        assert Frame.receive(client).body["topologyVersion"] == known


def test_exhaust_without_a_wait_is_a_single_reply(cluster: RunningCluster) -> None:
    with raw_client(cluster.address("router.0")) as client:
        client.send_command({"hello": 1}, flags=EXHAUST_ALLOWED)
        assert Frame.receive(client).flags == 0
        assert client.command({"ping": 1})["ok"] == 1.0


@pytest.mark.parametrize("name", ["router.0", "config.0.mongod"])
@pytest.mark.parametrize("asked", ["hello", "isMaster"])
def test_a_fail_point_ends_the_stream(cluster: RunningCluster, name: str, asked: str) -> None:
    """The next reply is a new command's. Other commands and other clients are not affected."""
    metadata = {
        "application": {"name": f"fails {asked}"},
        "driver": {"name": "tests", "version": "1"},
        "os": {"type": "Linux"},
    }
    with cluster.direct(name) as admin, raw_client(cluster.address(name)) as client:
        version = client.command({"hello": 1, "client": metadata})["topologyVersion"]
        client.send_command({asked: 1, "topologyVersion": version, "maxAwaitTimeMS": AWAIT_MS}, flags=EXHAUST_ALLOWED)
        other = "isMaster" if asked == "hello" else "hello"
        with fail_point(admin, "failCommand", failCommands=[other], errorCode=91, appName=f"fails {asked}"):
            assert {Frame.receive(client).flags for _ in range(3)} == {MORE_TO_COME}
        with fail_point(admin, "failCommand", failCommands=[asked], errorCode=91, appName="somebody else"):
            assert {Frame.receive(client).flags for _ in range(3)} == {MORE_TO_COME}
        last = Frame.receive(client)
        with fail_point(admin, "failCommand", failCommands=[asked], errorCode=91, appName=f"fails {asked}"):
            while (told := Frame.receive(client)).flags == MORE_TO_COME:
                last = told
        assert (told.flags, told.response_to, told.body["codeName"]) == (0, last.id, "ShutdownInProgress")
        assert client.command({"ping": 1})["ok"] == 1.0


def test_a_shutdown_ends_the_stream(cluster: RunningCluster) -> None:
    with extra_router(cluster) as (address, process), raw_client(address) as client:
        version = client.command({"hello": 1})["topologyVersion"]
        ask_for_stream(client, version)
        last = Frame.receive(client)
        process.send_signal(signal.SIGTERM)
        while (told := Frame.receive(client)).flags == MORE_TO_COME:
            assert told.response_to == last.id
            last = told
        assert (told.flags, told.response_to) == (0, last.id)
        assert (told.body["ok"], told.body["codeName"]) == (0.0, "ShutdownInProgress")
        assert told.body["topologyVersion"] == {**version, "counter": version["counter"] + 1}
        client.socket.close()
        assert process.wait(END_SECONDS_MAX) == 0
