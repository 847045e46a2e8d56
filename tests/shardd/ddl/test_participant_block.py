"""A collection that a coordinator has blocked on a shard, until its primary gets the command to admit operations."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

SECTIONS = "collection_critical_sections"


@pytest.mark.parametrize("is_killed", [False, True])
def test_operations_wait_even_after_it_has_died(mini: MiniCluster, ranged: ShardedNamespace, is_killed: bool) -> None:
    version, member = ranged.version("sh1"), mini.shards["sh1"].members[0]
    block = {"_shardsvrParticipantBlock": "c", "writeConcern": {"w": "majority"}}
    for _ in range(2):
        assert ranged.run(block, "sh1")["ok"]
    with member.mongod_client() as mongod:
        [section] = mongod.config[SECTIONS].find()
    reason = {"command": "ShardSvrParticipantBlockCommand", "ns": ranged.namespace}
    assert section == {"_id": ranged.namespace, "reason": reason, "blockReads": True}
    if is_killed:
        member.restart(member.daemon)
    with member.client() as client, ThreadPoolExecutor() as pool:
        read = {"find": "c", "maxTimeMS": 200, "shardVersion": version}
        assert client[ranged.db].command(read, check=False, allowable_errors=[50])["code"] == 50
        insert = {"insert": "c", "documents": [{"_id": 3, "a": 6}], "shardVersion": version}
        waiting = pool.submit(client[ranged.db].command, insert)
        for _ in range(2):
            client[ranged.db].command({**block, "blockType": "Unblock"})
        assert waiting.result(20)["n"] == 1
    with member.mongod_client() as mongod:
        assert mongod.config[SECTIONS].count_documents({}) == 0


def test_only_these_types(ranged: ShardedNamespace) -> None:
    assert ranged.run({"_shardsvrParticipantBlock": "c", "blockType": "Writes"})["code"] == 2


def test_a_change_of_options_may_end_it(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    assert ranged.run({"_shardsvrParticipantBlock": "c"})["ok"]
    change = {"_shardsvrCollModParticipant": "c", "collModRequest": {"validationLevel": "moderate"}}
    assert ranged.run({**change, "needsUnblock": True})["ok"]
    ranged.insert({"_id": 1, "a": 20})
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        assert mongod.config[SECTIONS].count_documents({}) == 0
