"""Releases of mongod: the ones that a daemon refuses, and the ones that it warns about."""

from typing import Any

import pytest
from bson import ObjectId

from shardwright.daemon.sidecar.hello import HelloMirror, release_refusal, release_warning


def hello(newest: int, oldest: int = 0) -> dict[str, Any]:
    return {
        "topologyVersion": {"processId": ObjectId(), "counter": 0},
        "setName": "shard0",
        "hosts": ["m0:1"],
        "me": "m0:1",
        "minWireVersion": oldest,
        "maxWireVersion": newest,
    }


def test_the_tried_release_is_neither_refused_nor_warned_of() -> None:
    assert release_refusal(hello(17)) is None
    assert release_warning(hello(17)) is None


@pytest.mark.parametrize(("newest", "name"), [(13, "MongoDB 5.0"), (9, "an unknown release of MongoDB")])
def test_an_older_mongod_is_refused(newest: int, name: str) -> None:
    refusal = release_refusal(hello(newest))
    assert refusal is not None
    assert f"the mongod is of {name}" in refusal
    assert "6.0 is needed; upgrade the mongod" in refusal


@pytest.mark.parametrize(
    ("newest", "name"), [(21, "MongoDB 7.0"), (25, "MongoDB 8.0"), (99, "release of MongoDB (maxWireVersion 99)")]
)
def test_a_newer_mongod_is_warned_of(newest: int, name: str) -> None:
    assert release_refusal(hello(newest)) is None
    warning = release_warning(hello(newest))
    assert warning is not None
    assert name in warning
    assert "was tried with 6.0 only" in warning


def test_a_mongod_that_no_longer_speaks_the_protocol_is_refused() -> None:
    refusal = release_refusal(hello(99, oldest=18))
    assert refusal is not None
    assert "no longer speaks as 6.0 does (minWireVersion 18)" in refusal


def test_a_refused_mongod_is_the_reason_why_the_daemon_is_not_ready() -> None:
    mirror = HelloMirror("m0:1", "d0:1")
    mirror.meet(hello(13))
    assert mirror.set_up_error == release_refusal(hello(13))
    reply = mirror.current_reply(connection_id=1)
    assert reply is not None
    assert reply["setUpError"] == mirror.set_up_error
