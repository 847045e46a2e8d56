"""A shard that hangs holds up neither the other shards nor those who stop the balancer."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import ExecutionTimeout

from tests.configd.balancing import MB, BalancedWorld, SizedShard
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import serving
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import replica_set


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BalancedWorld]:
    """Two shards with much data, and two without any."""
    with (
        replica_set(tmp_path_factory.mktemp("held_up"), daemon="configd") as running,
        serving(SizedShard, "a", "b", "c", "d") as shards,
        running.members[0].client() as client,
    ):
        catalog = CatalogUser(client)
        for shard in shards.values():
            catalog.run({"_configsvrAddShard": shard.connection_string})
        yield BalancedWorld(catalog, shards)
        for shard in shards.values():
            for event in shard.held.values():
                event.set()


@pytest.fixture
def hanging(world: BalancedWorld) -> Iterator[SizedShard]:
    """The shard with the most data, which never answers the request to move some of it; another one has much too."""
    namespace = "db.uneven"
    world.catalog.shard_collection(namespace, [(MinKey(), 0, "a"), (0, MaxKey(), "c")])
    world.shards["a"].sizes[namespace], world.shards["c"].sizes[namespace] = 9000 * MB, 8000 * MB
    shard = world.shards["a"]
    shard.held["_shardsvrMoveRange"] = threading.Event()
    world.start()
    world.wait_moves("a", 1)
    yield shard
    shard.held.pop("_shardsvrMoveRange").set()
    world.run({"_configsvrBalancerStop": 1})


def test_other_shards_go_on(world: BalancedWorld, hanging: SizedShard) -> None:
    world.wait_moves("c", 3)
    assert len(hanging.moves) == 1
    assert {move["toShard"] for move in world.shards["c"].moves} == {"d"}, "the recipient of the first one is taken"
    assert world.run({"_configsvrBalancerStatus": 1})["inBalancerRound"] is True
    with pytest.raises(ExecutionTimeout):
        world.run({"_configsvrBalancerStop": 1, "maxTimeMS": 100})
    began = len(world.shards["c"].moves)
    number = world.run({"_configsvrBalancerStatus": 1})["numBalancerRounds"]
    world.run({"_configsvrConfigureCollectionBalancing": "db.uneven", "enableAutoSplitter": True})

    def has_had_rounds() -> bool:
        world.run({"_configsvrConfigureCollectionBalancing": "db.uneven", "enableAutoSplitter": True})
        return bool(world.run({"_configsvrBalancerStatus": 1})["numBalancerRounds"] > number + 1)

    eventually(has_had_rounds, what="further rounds")
    assert len(world.shards["c"].moves) == began, "the balancer is off at once"
    hanging.held["_shardsvrMoveRange"].set()
    world.run({"_configsvrBalancerStop": 1})
    assert world.run({"_configsvrBalancerStatus": 1})["inBalancerRound"] is False
    logged = world.logged_rounds()
    assert {"errorOccurred": False, "candidateChunks": 2, "chunksMoved": 2}.items() <= logged[-1].items()


def test_a_move_goes_on_with_the_next_primary_of_its_donor(world: BalancedWorld) -> None:
    """Its former one is frozen, so it never answers."""
    with serving(SizedShard, "first", "second") as members:
        first, second = members.values()
        for each in members.values():
            each.set_name = "elected"
        elect(first, [first, second])
        hosts = f"elected/{first.address},{second.address}"
        world.catalog.run({"_configsvrAddShard": hosts, "name": "elected"})
        try:
            world.catalog.shard_collection("db.elected", [(MinKey(), MaxKey(), "elected")])
            held = first.held["_shardsvrMoveRange"] = threading.Event()
            move = {"_configsvrMoveRange": "db.elected", "toShard": "b", "min": {"x": MinKey()}, "max": {"x": MaxKey()}}
            with ThreadPoolExecutor(1) as pool:
                moving = pool.submit(world.catalog.run, move)
                with first.arrived:
                    assert first.arrived.wait_for(lambda: len(first.moves) == 1, 60)
                elect(second, [first, second])
                moving.result(60)
            held.set()
            assert len(second.moves) == 1
            assert {**second.moves[0], **_TIMES} == {**first.moves[0], **_TIMES}
        finally:
            world.catalog.config.shards.delete_one({"_id": "elected"})


_TIMES: Final = dict.fromkeys(("$clusterTime", "$configTime", "$topologyTime", "lsid", "operationTime"))


def elect(primary: SizedShard, members: Sequence[SizedShard]) -> None:
    """Have the members say which one of them is primary."""
    for each in members:
        is_primary = each is primary
        state = {"isWritablePrimary": is_primary, "secondary": not is_primary, "primary": primary.address}
        each.hello = {**state, "hosts": [member.address for member in members]}
