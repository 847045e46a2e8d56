"""Wrong set-ups report fault and remedy within seconds, in the log and to the client."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.deploy.mongod import connect, initiate, wait_primary
from tests.integration.health import http_get
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MAJORITY, START_SECONDS, Member, MiniCluster, _plan_member, mini_cluster

PROMPT_SECONDS = 15.0
"""Less than the 20 seconds after which no primary is found; the machine may be busy."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    with mini_cluster(tmp_path_factory.mktemp("config"), shards=0) as started:
        yield started


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    """A mongod and its daemon, neither of them started."""
    planned = _plan_member(tmp_path, "candidate", "shardd", 0, None)
    with ExitStack() as stack:
        stack.callback(planned.mongod.stop)
        stack.callback(planned.daemon.stop)
        yield planned


def start_mongod(member: Member, address: str) -> None:
    """Start the mongod, and initiate its set with an address."""
    member.mongod.start()
    with connect(member.mongod_plan.address, START_SECONDS) as client:
        client.admin.command("ping")
        member_document = {"_id": 0, "host": address}
        client.admin.command("replSetInitiate", {"_id": "candidate", "members": [member_document]})


def logged(member: Member, message: str) -> list[dict[str, Any]]:
    lines = member.daemon.log.read_text(encoding="utf-8").splitlines() if member.daemon.log.exists() else []
    return [line for line in map(json.loads, lines) if line["msg"] == message]


def refused(config: MiniCluster, target: str) -> str:
    """The text with which a shard is refused, promptly."""
    started = time.monotonic()
    with config.config_client() as client, pytest.raises(OperationFailure) as failure:
        client.admin.command({"_configsvrAddShard": target, "writeConcern": MAJORITY})
    assert time.monotonic() - started < PROMPT_SECONDS
    assert failure.value.code == 96
    return str((failure.value.details or {})["errmsg"])


def test_a_set_of_daemons_addresses(config: MiniCluster, member: Member) -> None:
    member.daemon.start()
    eventually(lambda: logged(member, "Listening"), within=START_SECONDS, what="the daemon listens")
    start_mongod(member, member.address)
    mongod = member.mongod_plan.address
    todo = (
        "the replica set candidate has been initiated with the addresses of daemons; reconfigure it (replSetReconfig) "
        f"with the addresses of its mongods, here {mongod} in place of {member.address}"
    )
    (line,) = eventually(lambda: logged(member, "The mongod or its set does not fit this daemon"), within=START_SECONDS)
    assert (line["level"], line["error"]) == ("error", todo)
    wait_primary("candidate", [mongod], time.monotonic() + START_SECONDS)
    metrics = f"127.0.0.1:{member.metrics_port}"
    eventually(lambda: todo in http_get(metrics, "/readyz")[1], within=START_SECONDS)
    assert http_get(metrics, "/readyz")[0] == 503
    target = f"candidate/{member.address}"
    assert refused(config, target) == f"cannot add {target} as a shard: {todo}"
    with connect(mongod) as client:
        wanted = client.admin.command("replSetGetConfig")["config"]
        wanted["version"] += 1
        wanted["members"][0]["host"] = mongod
        client.admin.command("replSetReconfig", wanted, force=True)
    member.wait_ready()
    eventually(lambda: http_get(metrics, "/readyz")[0] == 200, within=START_SECONDS)


def test_another_address_of_the_mongod_than_its_set_has(config: MiniCluster, member: Member) -> None:
    port = member.mongod_plan.port
    member.daemon.start()
    start_mongod(member, f"localhost:{port}")
    (line,) = eventually(lambda: logged(member, "The mongod or its set does not fit this daemon"), within=START_SECONDS)
    assert line["error"] == (
        f"the mongod is localhost:{port} in the configuration of the replica set candidate, and 127.0.0.1:{port} for "
        f"its daemon; start {member.address} with --mongod-address localhost:{port}, or reconfigure the set"
    )
    assert line["error"] in refused(config, f"candidate/{member.address}")


def test_the_address_of_a_mongod_as_a_shard(config: MiniCluster, member: Member) -> None:
    plan = member.mongod_plan
    member.mongod.start()
    initiate("candidate", [plan], plan.address)
    target = f"candidate/{plan.address}"
    assert refused(config, target) == (
        f"cannot add {target} as a shard: {plan.address} is not a shard daemon; give the addresses of the daemons "
        "(shardwright-shardd) that run in front of the mongods of the set"
    )


def test_a_mongod_that_is_absent_is_logged_until_it_is_there(member: Member) -> None:
    member.daemon.start()
    (line,) = eventually(lambda: logged(member, "The mongod cannot be reached"), within=START_SECONDS)
    assert line["level"] == "warning"
    assert line["mongod"].endswith(".sock")
    start_mongod(member, member.mongod_plan.address)
    (line,) = eventually(lambda: logged(member, "Reached the mongod"), within=START_SECONDS)
    assert line["absent_seconds"] > 0


@pytest.mark.parametrize("daemon", ["shardd", "configd"])
def test_loopback_is_not_advertised_to_members_elsewhere(daemon: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"shardwright.{daemon}.main", "--port", "1234"]
    command += ["--mongod-socket", str(tmp_path / "m.sock"), "--mongod-address", "10.0.0.3:27018"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode == 2
    assert completed.stderr.splitlines()[-1].endswith(
        "other machines cannot reach this daemon at 127.0.0.1:1234, as they reach its mongod at 10.0.0.3:27018: "
        "give --bind-ip another address than loopback, or --advertise HOST[:PORT]"
    )
