"""The router never reads an older catalog than it has seen, and gossips the newest config time to shards."""

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.router.placement.routing_info import CollectionRouting, DatabaseRouting
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.writes.targeted_batch import broadcast_elements
from shardwright.sharding.catalog.reads import read_shards
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import op_msg
from tests.config_servers.fake_config_servers import FakeConfigServers, client_of

TIME = Timestamp(7, 3)
LATER = Timestamp(8, 1)


def test_after_a_stale_error_the_catalog_is_read_as_of_what_the_shard_knows() -> None:
    clock, servers = VectorClock(), FakeConfigServers(TIME)
    stale = {"ok": 0.0, "code": ErrorCode.StaleConfig, "errmsg": "stale", "$configTime": LATER}
    reply = ShardReply("sh0", "host:1", op_msg(bson.encode(stale), request_id=1, response_to=1))
    reply.tell(clock)
    trio.run(client_of(servers, clock).read, read_shards())
    assert servers.commands[0]["readConcern"]["afterClusterTime"] == LATER
    assert b"$configTime" not in reply.for_client()


VERSION = DatabaseVersion.from_value({"uuid": bson.Binary(bytes(16), 4), "timestamp": TIME, "lastMod": 1})


def test_versions_carry_the_time_in_front_made_once_for_each_shard() -> None:
    database = DatabaseRouting("db", "sh0", VERSION, pack_timestamp(LATER))
    routing = CollectionRouting("db.c", database, None, pack_timestamp(TIME))
    elements = routing.versions_for("sh0")
    assert next(iter(bson.decode(rawbson.from_elements(elements)).items())) == ("$configTime", TIME)
    assert list(bson.decode(rawbson.from_elements(elements))) == ["$configTime", "shardVersion", "databaseVersion"]
    assert routing.versions_for("sh0") is elements


def test_commands_on_a_database_carry_the_time_in_front() -> None:
    database = DatabaseRouting("db", "sh0", VERSION, pack_timestamp(TIME))
    elements = bson.decode(rawbson.from_elements(database.element))
    assert list(elements) == ["$configTime", "databaseVersion"]
    assert elements["$configTime"] == TIME
    assert b"$configTime" not in database.unsharded_elements


def test_statements_for_all_shards_carry_the_time() -> None:
    elements = bson.decode(rawbson.from_elements(broadcast_elements(pack_timestamp(LATER), pack_timestamp(TIME))))
    assert elements["$configTime"] == TIME
    assert list(elements) == ["$configTime", "shardVersion", "$topologyTime"]
