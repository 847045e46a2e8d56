"""The output of ``shardwright finish-upgrade``, and its errors; ``test_rolling_upgrade.py`` runs it."""

import socket
import time
from typing import Any

import pytest

from shardwright.deploy import upgrade
from shardwright.deploy.command_line import argument_parser
from shardwright.deploy.errors import DeployError
from shardwright.deploy.mongod import uri_of
from shardwright.deploy.upgrade import finish_upgrade, run_finish_upgrade, upgrade_text
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.request import Request
from tests.configd.fake_shard import FakeShard, serving
from tests.sharding.conftest import throw_away_mongod


def test_a_finished_upgrade_is_reported() -> None:
    assert upgrade_text({"featureVersion": 2, "newest": 2}) == (
        "the cluster has feature version 2, the newest one that its daemons know"
    )


def test_a_dry_run_names_what_is_in_the_way() -> None:
    text = upgrade_text({"featureVersion": 1, "newest": 2, "obstacles": ["a:1 is old", "b:2 is away"]})
    assert text.splitlines() == [
        "the cluster has feature version 1; finish-upgrade would raise it to 2",
        "  in the way: a:1 is old",
        "  in the way: b:2 is away",
    ]


def test_config_servers_of_an_older_release_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router is of an older release too; otherwise it would have asked the daemons itself."""
    daemons = [{"name": "config:1", "newest": 2}, {"name": "shard:1", "newest": 3}, {"name": "b:2", "error": "refused"}]
    reply = {"featureVersion": 2, "newest": 2, "obstacles": [], "daemons": daemons}
    monkeypatch.setattr(upgrade, "finish_upgrade", lambda *_, **__: reply)
    options = argument_parser().parse_args(["finish-upgrade", "--uri", "mongodb://router"])
    assert run_finish_upgrade(options) == 1
    assert capsys.readouterr().out.splitlines() == [
        "the cluster has feature version 2; finish-upgrade cannot raise it to 3",
        "  config:1 knows feature versions up to 2",
        "  shard:1 knows feature versions up to 3",
        "  in the way: config:1 does not know feature version 3; upgrade and restart it",
        "  in the way: b:2 cannot be reached (refused)",
    ]


def test_a_mongod_is_not_a_router(mongod_binary: str) -> None:
    with throw_away_mongod(mongod_binary) as client:
        assert client.address is not None
        mongod = client.address[0]
        plain = uri_of(mongod)
        for uri in (plain, plain.replace("//", "//name:word@")):
            with pytest.raises(DeployError, match=f"^{mongod} is not a Shardwright router \\(a mongod"):
                finish_upgrade(uri, {})


class Mongos(FakeShard):
    """As much of MongoDB's mongos as an empty ``modules`` in the reply to ``buildInfo``."""

    def answer(self, request: Request) -> dict[str, Any]:
        if request.name in HELLO_NAMES:
            return {"isWritablePrimary": True, "msg": "isdbgrid", "minWireVersion": 0, "maxWireVersion": 17}
        assert request.name == "buildInfo"
        return {"modules": []}


def test_a_mongos_of_mongodb_is_not_a_router() -> None:
    with serving(Mongos, "mongos") as servers:
        address = servers["mongos"].address
        with pytest.raises(DeployError, match=f"^{address} is not a Shardwright router \\(MongoDB's mongos"):
            finish_upgrade(f"mongodb://{address}/", {})


def test_a_silent_server_is_not_waited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        with pytest.raises(DeployError, match=r"^the cluster does not answer: "):
            finish_upgrade(f"mongodb://127.0.0.1:{listener.getsockname()[1]}", {})
    assert 4 < time.monotonic() - began < 10


def test_a_cluster_that_does_not_answer() -> None:
    with pytest.raises(DeployError, match="the cluster does not answer: "):
        finish_upgrade("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", {})


@pytest.mark.parametrize("uri", ["mongodb:///nowhere", "mongodb://a:99999", "mongodb://a/?tlsCAFile=gone"])
def test_a_malformed_connection_string(uri: str) -> None:
    options = argument_parser().parse_args(["finish-upgrade", "--uri", uri])
    with pytest.raises(DeployError, match="the connection string cannot be used: "):
        run_finish_upgrade(options)
