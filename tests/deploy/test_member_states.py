"""The progress of a mongod that joins a set, and wrong states."""

from typing import Any

import pytest

from shardwright.deploy.member_states import Progress, WrongStateError, extended, progress

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
