"""The document that makes a replica set a shard."""

from typing import Any

import pytest
from bson.objectid import ObjectId

from shardwright.shardd.exchange.remote_sets import ShardIdentity
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

DOCUMENT = {"shardName": "a", "clusterId": ObjectId(), "configsvrConnectionString": "cfg/one:27019,two:27019"}


def test_an_identity_names_the_config_servers() -> None:
    identity = ShardIdentity.from_document(DOCUMENT)
    assert identity.config_servers.set_name == "cfg"
    assert identity.config_servers.addresses == ("one:27019", "two:27019")
    assert identity.to_document() == {"_id": "shardIdentity", **DOCUMENT}


def test_a_shard_stays_the_same_when_the_config_servers_move() -> None:
    identity = ShardIdentity.from_document(DOCUMENT)
    assert identity.is_same_shard(ShardIdentity.from_document(DOCUMENT | {"configsvrConnectionString": "cfg/three:1"}))
    assert not identity.is_same_shard(ShardIdentity.from_document(DOCUMENT | {"configsvrConnectionString": "x/one:1"}))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"configsvrConnectionString": "cfg/"}, ErrorCode.FailedToParse),
        ({"configsvrConnectionString": "cfg/one:x"}, ErrorCode.FailedToParse),
        ({"configsvrConnectionString": "one:1,two:1"}, ErrorCode.FailedToParse),
        ({"configsvrConnectionString": "one:1"}, ErrorCode.UnsupportedFormat),
        ({"configsvrConnectionString": "/tmp/one.sock"}, ErrorCode.UnsupportedFormat),
    ],
)
def test_config_servers_that_are_no_replica_set_are_refused(changes: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as refused:
        ShardIdentity.from_document(DOCUMENT | changes)
    assert refused.value.code == code
