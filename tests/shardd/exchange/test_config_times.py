"""Advancing a shard's clock to the config times in requests."""

import time
from typing import TYPE_CHECKING, Any, cast

import bson
from bson.timestamp import Timestamp

from shardwright.shardd.exchange.remote_sets import ConfigTimes
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import LocalMongod

EARLIER, LATER = Timestamp(7, 3), Timestamp(8, 1)


def observed(command: dict[str, Any]) -> int:
    """Return the config time after a request."""
    times = ConfigTimes(cast("LocalMongod", None))
    times.observe(Request(OpMsg(op_msg(bson.encode(command), request_id=1))))
    return times.clock.time.config_time


def test_the_time_of_a_request_is_known_from_then_on() -> None:
    assert observed({"update": "c", "$configTime": EARLIER, "$db": "db"}) == pack_timestamp(EARLIER)


def test_so_are_the_times_of_involved_namespaces() -> None:
    involved = [{"ns": "db.a", "$configTime": LATER}, {"ns": "db.b", "$configTime": EARLIER}, {"ns": "db.c"}]
    command = {"aggregate": "c", "$configTime": EARLIER, "involvedNamespaces": involved, "$db": "db"}
    assert observed(command) == pack_timestamp(LATER)


def test_times_in_the_future_are_not() -> None:
    future = Timestamp(2**32 - 1, 1)
    assert observed({"aggregate": "c", "involvedNamespaces": [{"ns": "db.a", "$configTime": future}], "$db": "db"}) == 0


def test_the_clock_may_be_behind_the_cluster() -> None:
    """A clock that was ahead has been set back; the times of the cluster are not."""
    times, ahead = ConfigTimes(cast("LocalMongod", None)), Timestamp(int(time.time()) + 3600, 1)
    command = op_msg(bson.encode({"find": "c", "$configTime": ahead, "$db": "db"}), request_id=1)
    times.observe(Request(OpMsg(command)))
    assert times.clock.time.config_time == 0
    times.observe_reply({"ok": 1, "$clusterTime": {"clusterTime": ahead}})
    times.observe(Request(OpMsg(command)))
    assert times.clock.time.config_time == pack_timestamp(ahead)
