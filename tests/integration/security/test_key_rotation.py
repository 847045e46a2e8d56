"""The keys that sign cluster times are replaced while clients of two routers continue.

The config servers' mongod makes keys for a few seconds in place of 90 days, so the cluster outlives both of its first
keys. mongod looks for expired ones rarely, so here, for some seconds, there is no valid key. Then times are not signed,
which clients do not notice either.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.sharding.cluster_time import SigningKey, pack_timestamp, proof_of
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import router_of
from tests.integration.sharded import Document
from tests.integration.signed_times import is_signed, later, signing_keys, time_in
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster, mini_cluster

ROTATION_SECONDS: Final = 6
ROTATED_SECONDS_MAX: Final = 120.0

AHEAD_SECONDS: Final = 2

TIME_PROOF_MISMATCH: Final = 204
KEY_NOT_FOUND: Final = 211


class Application:
    """A causally consistent session that writes through one router and reads through another, with gossip.

    Attributes:
        routers: connections to both.
        written: number of documents.
        newest: the newest reply of each router, in the order of their arrival.
    """

    def __init__(self, routers: list[RawClient]) -> None:
        self.routers = routers
        self.written = 0
        self.newest: list[Document] = []

    def step(self) -> None:
        """Write a document and read it."""
        first, second = self.routers
        lsid = {"id": Binary.from_uuid(uuid4())}
        written = self._run(first, {"insert": "c", "documents": [{"_id": self.written}], "lsid": lsid})
        self.written += 1
        concern = {"level": "local", "afterClusterTime": written["operationTime"]}
        read = {"find": "c", "filter": {"_id": self.written - 1}, "readConcern": concern, "lsid": lsid}
        found = self._run(second, read)
        assert found["cursor"]["firstBatch"] == [{"_id": self.written - 1}]

    def _run(self, router: RawClient, command: Document) -> Document:
        times = {"$clusterTime": time_in(self.newest[-1])} if self.newest else {}
        reply = router.command({**command, **times}, db="rotated")
        assert reply["ok"], reply
        self.newest = [*self.newest[-1:], reply]
        return reply


@pytest.fixture(scope="module")
def rotating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose keys are replaced every few seconds."""
    parameters = {"KeysRotationIntervalSec": str(ROTATION_SECONDS)}
    with mini_cluster(tmp_path_factory.mktemp("rotating"), shards=1, config_parameters=parameters) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def routers(rotating: MiniCluster) -> Iterator[list[RawClient]]:
    """Connections to two routers."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(router_of(rotating.config.connection_string))[0] for _ in range(2)]
        yield [stack.enter_context(raw_client(address)) for address in addresses]


def keys_of(cluster: MiniCluster) -> dict[int, SigningKey]:
    """The keys that there are now."""
    with cluster.config.members[0].mongod_client() as mongod:
        return signing_keys(mongod)


def gossiped(time: Timestamp, key: SigningKey, proof: bytes) -> dict[str, Any]:
    """A ``$clusterTime`` as a client sends it."""
    return {"clusterTime": time, "signature": {"hash": Binary(proof), "keyId": Int64(key.id)}}


def test_keys_are_replaced_in_a_running_cluster(rotating: MiniCluster, routers: list[RawClient]) -> None:
    application = Application(routers)
    first_keys: dict[int, SigningKey] = {}

    def is_signed_by(keys: dict[int, SigningKey]) -> bool:
        application.step()
        return all(is_signed(reply, keys) for reply in application.newest)

    def has_first_keys() -> bool:
        first_keys.update(keys_of(rotating))
        return is_signed_by(first_keys)

    def has_new_keys() -> bool:
        return is_signed_by({id_: key for id_, key in keys_of(rotating).items() if id_ not in first_keys})

    eventually(has_first_keys, within=ROTATED_SECONDS_MAX, what="both routers sign")
    early = application.newest[0]
    eventually(has_new_keys, within=ROTATED_SECONDS_MAX, what="both routers sign with a new key")

    for router in routers:
        assert router.command({"ping": 1, "$clusterTime": time_in(early)})["ok"], "the time of an expired key is known"
        ahead = later(router.command({"ping": 1}))
        expired = max(first_keys.values(), key=lambda key: key.expires_at)
        made_up = gossiped(ahead, expired, proof_of(expired, pack_timestamp(ahead)))
        refused = router.command({"ping": 1, "$clusterTime": made_up})
        assert refused["code"] == KEY_NOT_FOUND, "an expired key proves no time after it"


def test_a_key_is_known_before_a_router_has_met_it(rotating: MiniCluster, routers: list[RawClient]) -> None:
    """It is looked up at once. A time that it has not signed is refused."""

    def unexpired() -> tuple[Timestamp, SigningKey] | None:
        application.step()
        ahead = max(later(reply, AHEAD_SECONDS) for reply in application.newest)
        newest = max(keys_of(rotating).values(), key=lambda key: key.expires_at)
        return (ahead, newest) if newest.expires_at > pack_timestamp(ahead) else None

    application = Application(routers)
    ahead, key = eventually(unexpired, within=ROTATED_SECONDS_MAX, what="a key that has not expired")
    proof = proof_of(key, pack_timestamp(ahead))
    for router in routers:
        refused = router.command({"ping": 1, "$clusterTime": gossiped(ahead, key, bytes(len(proof)))})
        assert refused["code"] == TIME_PROOF_MISMATCH
        assert time_in(refused)["clusterTime"] < ahead
        assert router.command({"ping": 1, "$clusterTime": gossiped(ahead, key, proof)})["ok"]
        assert time_in(router.command({"ping": 1}))["clusterTime"] >= ahead
