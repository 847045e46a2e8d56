"""The progress of a mongod that joins a set, and wrong states."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from shardwright.deploy.errors import DeployError
from shardwright.deploy.host_files import HostMember
from shardwright.deploy.joining import Joining
from shardwright.deploy.member_states import (
    Progress,
    WrongStateError,
    check_identity,
    check_listed,
    extended,
    progress,
)
from shardwright.deploy.steps import Steps

MONGOD, DAEMON = "a:28018", "a:27018"
MEMBER = {"setName": "shard0", "me": MONGOD, "hosts": [MONGOD, "b:28018"]}


def state(hello: dict[str, Any]) -> Progress:
    return progress(hello, "shard0", MONGOD, DAEMON)


@pytest.mark.parametrize(
    ("hello", "expected"),
    [
        ({"isreplicaset": True}, Progress.EMPTY),
        ({"info": "Does not have a valid replica set config"}, Progress.STARTING),
        ({**MEMBER, "isWritablePrimary": True}, Progress.PRIMARY),
        ({**MEMBER, "secondary": True}, Progress.SECONDARY),
        ({**MEMBER, "primary": "b:28018"}, Progress.COPYING),
        (MEMBER, Progress.STARTING),
    ],
)
def test_progress(hello: dict[str, Any], expected: Progress) -> None:
    assert state(hello) is expected


@pytest.mark.parametrize(
    ("hello", "message"),
    [
        ({}, "runs without a replica set; write replication.replSetName: shard0"),
        ({"msg": "isdbgrid"}, "a router answers at a:28018"),
        ({**MEMBER, "setName": "other"}, "belongs to the replica set other, not to shard0"),
        ({**MEMBER, "me": DAEMON}, "has the address of the daemon a:27018 in its configuration; reconfigure it"),
        ({**MEMBER, "me": "x:1"}, "is x:1 in the configuration of shard0, and a:28018 in the file of its daemon"),
        ({**MEMBER, "hosts": ["b:28018"]}, "was removed from the set shard0, or belongs to another set of this name"),
    ],
)
def test_wrong_states_say_what_to_do(hello: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongStateError) as caught:
        state(hello)
    assert message in str(caught.value)


def test_a_configuration_is_extended_once() -> None:
    before = {"version": 4, "members": [{"_id": 2, "host": "b:28018"}]}
    after = extended(before, MONGOD)
    assert after == {"version": 5, "members": [{"_id": 2, "host": "b:28018"}, {"_id": 3, "host": MONGOD}]}
    assert extended(after, MONGOD) is None


DAEMON_HELLO = {"hosts": [DAEMON, "b:27018"], "passives": ["c:27018"]}


@pytest.mark.parametrize("listed", ["shard0/a:27018", "shard0/x:1,b:27018", "shard0/c:27018"])
def test_a_shard_is_recognised_by_its_daemons(listed: str) -> None:
    check_listed(listed, DAEMON_HELLO, "shard0")


@pytest.mark.parametrize("listed", ["shard0/x:27018", "other/a:27018"])
def test_another_set_with_the_name_of_a_shard_is_refused(listed: str) -> None:
    """Such a set is initiated by the same command on two hosts at once."""
    with pytest.raises(WrongStateError, match=f"another replica set, at {listed}, .* does not belong to the cluster"):
        check_listed(listed, DAEMON_HELLO, "shard0")


def test_two_sets_of_one_name_are_told_apart() -> None:
    first, second = ({"settings": {"replicaSetId": number}} for number in (1, 2))
    check_identity(first, first, "shard0", "b:27018")
    with pytest.raises(WrongStateError, match=r"another replica set shard0 than b:27018.*join shard0 --member b:27018"):
        check_identity(first, second, "shard0", "b:27018")


def test_config_servers_are_initiated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second host, another config daemon that does not run is passed over."""
    hellos = {
        MONGOD: {"isreplicaset": True},
        "b:27019": None,
        "c:27019": {"setName": "config", "primary": "c:27019"},
    }
    commands: list[str] = []

    @contextmanager
    def connect(address: str, _seconds: float, _log_in: Mapping[str, Any]) -> Iterator[SimpleNamespace]:
        def command(name: str) -> dict[str, Any]:
            commands.append(name)
            if name == "getCmdLineOpts":
                return {"parsed": {"replication": {"replSetName": "config"}}}
            answer = hellos[address]
            if answer is None:
                raise AutoReconnect("connection refused")
            return answer

        yield SimpleNamespace(admin=SimpleNamespace(command=command))

    monkeypatch.setattr("shardwright.deploy.joining.connect", connect)
    member = HostMember("config", is_shard=False, mongod=MONGOD, daemon="a:27019", log_in={})
    with pytest.raises(DeployError, match="config is already initiated at c:27019; add this member with `shardwright"):
        Joining(member, Steps(), 0.0).initiate((), None, ["b:27019", "c:27019"])
    assert "replSetInitiate" not in commands
