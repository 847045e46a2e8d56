"""The balancer's reports and decisions, and the removal of shards, compared with a genuine config server's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fail_points import fail_point
from tests.genuine_cluster import genuine_cluster
from tests.integration.waiting import eventually
from tests.interop.comparison import assert_same
from tests.interop.deployment import HIGH, LOW, Deployment, Document, genuine_deployment
from tests.server_parameters import server_parameter

Both = tuple[Deployment, Deployment]

SECONDS_MAX = 120.0


def run(deployment: Deployment, command: Mapping[str, Any]) -> Document:
    """A command without a write concern."""
    return deployment.on_config(command, write_concern=None)


def collection(deployment: Deployment, namespace: str, *bounds: int) -> None:
    """A collection with chunks between these keys, all on the first shard."""
    reply = deployment.shard_collection(namespace, {"x": 1})
    assert reply["ok"], reply
    if bounds:
        deployment.split(namespace, {"x": LOW}, {"x": HIGH}, *({"x": bound} for bound in bounds))


@contextmanager
def zone(deployment: Deployment, shard: int, name: str, **ranges: tuple[object, int]) -> Iterator[None]:
    """A zone of one shard with a range of each of some collections."""
    member = {"_configsvrAddShardToZone": deployment.shard_ids[shard], "zone": name}
    assert deployment.on_config(member)["ok"]
    for collection_name, (low, high) in ranges.items():
        set_range(deployment, collection_name, low, high, name)
    try:
        yield
    finally:
        for collection_name, (low, high) in ranges.items():
            set_range(deployment, collection_name, low, high, None)
        deployment.on_config({"_configsvrRemoveShardFromZone": deployment.shard_ids[shard], "zone": name})


def set_range(deployment: Deployment, name: str, low: object, high: int, zone_name: str | None) -> None:
    command = {"_configsvrUpdateZoneKeyRange": f"bal.{name}", "min": {"x": low}, "max": {"x": high}}
    reply = deployment.on_config({**command, "zone": zone_name})
    assert reply["ok"], reply


def status(deployment: Deployment, name: str) -> Document:
    return run(deployment, {"_configsvrBalancerCollectionStatus": f"bal.{name}"})


@pytest.fixture(autouse=True)
def idle_balancers(both: Both) -> Iterator[None]:
    """They do nothing but during `balance`; in a new cluster they would. MongoDB's rounds follow each other quickly."""
    for deployment in both:
        run(deployment, {"_configsvrBalancerStop": 1})
    with fail_point(both[0].config, "overrideBalanceRoundInterval", intervalMs=200):
        yield


def test_collection_status(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.plain", 5)
        answers = [status(deployment, "plain"), status(deployment, "nothing")]
        with zone(deployment, 1, "bz", plain=(0, 5)):
            answers.append(status(deployment, "plain"))
        with zone(deployment, 1, "bz", plain=(5, 7)):
            answers.append(status(deployment, "plain"))
        missing = run(deployment, {"_configsvrBalancerCollectionStatus": "bal_missing.nothing"})
        return [*answers, status(deployment, "plain"), missing]

    assert_same(both, ask)


def test_settings_of_a_collection(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.configured")

        def configure(name: str = "configured", **options: Any) -> Document:  # noqa: ANN401 - any option
            return run(deployment, {"_configsvrConfigureCollectionBalancing": f"bal.{name}", **options})

        def entry() -> tuple[Any, ...]:
            document = deployment.entry("bal.configured")
            return tuple(document.get(name) for name in ("maxChunkSizeBytes", "noAutoSplit"))

        return [
            configure(),
            configure(chunkSize=-1),
            configure(chunkSize=1025),
            configure("nothing", chunkSize=5),
            configure(chunkSize=5),
            entry(),
            status(deployment, "configured"),
            [chunk["lastmod"] for chunk in deployment.chunks("bal.configured")],
            configure(enableAutoSplitter=False),
            configure(chunkSize=0),
            entry(),
        ]

    assert_same(both, ask)


def test_sizes(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.sized")
        documents = [{"_id": number, "x": number, "filler": "x" * 1000} for number in range(10)]
        version = deployment.shard_version("bal.sized", 0)
        reply = deployment.on_shard(0, {"insert": "sized", "documents": documents, "shardVersion": version}, db="bal")
        assert reply.get("n") == 10, reply
        known = {"ns": "bal.sized", "UUID": deployment.entry("bal.sized")["uuid"]}
        other = {"ns": "bal.none", "UUID": known["UUID"]}
        command = {"_shardsvrGetStatsForBalancing": 1, "collections": [known, other]}
        return [
            deployment.on_shard(shard, {**command, "scaleFactor": scale}) for shard in (0, 1) for scale in (1, 1000)
        ]

    assert_same(both, ask)


def test_removing_a_shard(both: Both) -> None:
    """As far as it goes without ending a shard that other tests need."""

    def ask(deployment: Deployment) -> list[Any]:
        shards = deployment.config.config.shards
        last = deployment.shard_ids[-1]

        def remove(shard: str) -> Document:
            reply = deployment.on_config({"_configsvrRemoveShard": shard})
            for name, value in reply.pop("remaining", {}).items():
                assert value >= 0
                reply[name] = type(value).__name__
            reply.pop("dbsToMove", None)
            return reply

        collection(deployment, "bal.stays")
        collection(deployment, "bal.removed")
        moved = deployment.move("bal.removed", len(deployment.shards) - 1, min={"x": LOW}, max={"x": HIGH})
        assert moved["ok"], moved
        answers: list[Any] = [remove("nobody")]
        try:
            with zone(deployment, len(deployment.shards) - 1, "bremoved", removed=(0, 5)):
                answers.append(remove(last))
            answers += [remove(last), remove(last), shards.find_one({"_id": last}, {"draining": True})]
            for name in ("bal.removed", "bal.stays"):
                answers.append(deployment.move(name, len(deployment.shards) - 1, min={"x": LOW}))
            others = shards.update_many({"_id": {"$ne": last}}, {"$set": {"draining": True}})
            assert others.acknowledged
            shards.update_one({"_id": last}, {"$unset": {"draining": True}})
            answers.append(remove(last))
        finally:
            shards.update_many({}, {"$unset": {"draining": True}})
        changes = deployment.config.config.changelog.find({"what": {"$regex": "^removeShard"}})
        return [*answers, [(change["what"], change["details"]) for change in changes]]

    assert_same(both, ask)


def fill(deployment: Deployment, name: str, count: int) -> None:
    """Documents of 100 kB with the keys from 0 on, on the first shard."""
    version = deployment.shard_version(f"bal.{name}", 0)
    for number in range(count):
        documents = [{"_id": number, "x": number, "filler": "x" * 100_000}]
        reply = deployment.on_shard(0, {"insert": name, "documents": documents, "shardVersion": version}, db="bal")
        assert reply.get("n") == 1, reply


def placement(deployment: Deployment, name: str) -> list[Any]:
    return [(chunk["min"], chunk["shard"]) for chunk in deployment.chunks(f"bal.{name}")]


def moves(deployment: Deployment, namespace: str) -> list[Any]:
    """The moves that a balancer has begun."""
    fields = ("min", "max", "from", "to")
    changes = deployment.config.config.changelog.find({"what": "moveChunk.start", "ns": namespace})
    return [[change["details"][name] for name in fields] for change in changes.sort("$natural", 1)]


def balance(deployment: Deployment, is_done: Callable[[], bool]) -> None:
    """Have the balancer run until it is done, also after its last move: during one, both shards have its documents."""

    def is_done_at_rest() -> bool:
        run(deployment, {"_configsvrBalancerStart": 1})
        try:
            eventually(is_done, within=SECONDS_MAX, what="the balancer is done")
        finally:
            run(deployment, {"_configsvrBalancerStop": 1})
        return is_done()

    eventually(is_done_at_rest, within=SECONDS_MAX, what="the balancer is done at rest")


def test_decisions_about_zones(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.zoned", 3, 8)
        with zone(deployment, 1, "bdecided", zoned=(0, 5)):
            balance(deployment, lambda: bool(status(deployment, "zoned")["balancerCompliant"]))
            return [placement(deployment, "zoned"), moves(deployment, "bal.zoned")]

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_decisions_about_a_draining_shard(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.drained", 3, 8)
        shards = deployment.config.config.shards
        first = deployment.shard_ids[0]
        shards.update_one({"_id": first}, {"$set": {"draining": True}})
        query = {"uuid": deployment.entry("bal.drained")["uuid"], "shard": first}
        try:
            balance(deployment, lambda: deployment.config.config.chunks.count_documents(query) == 0)
        finally:
            shards.update_one({"_id": first}, {"$unset": {"draining": True}})
        return moves(deployment, "bal.drained")

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_decisions_about_uneven_data(both: Both) -> None:
    """Both move what lies first, and stop at the same difference; how much one move takes is the donor's choice."""

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.uneven")
        run(deployment, {"_configsvrConfigureCollectionBalancing": "bal.uneven", "chunkSize": 1})
        fill(deployment, "uneven", 80)
        before = status(deployment, "uneven")
        balance(deployment, lambda: bool(status(deployment, "uneven")["balancerCompliant"]))
        begun = moves(deployment, "bal.uneven")
        assert 2 <= len(begun) <= 4
        return [before, status(deployment, "uneven"), begun[0][0], [each[2:] for each in begun][:2]]

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_decisions_about_jumbo_chunks(both: Both) -> None:
    """They stay where they are, also on a draining shard, and do not count as a violation."""

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.jumbo", 3, 8, 12)
        config, first = deployment.config.config, deployment.shard_ids[0]
        uuid = deployment.entry("bal.jumbo")["uuid"]
        config.chunks.update_many({"uuid": uuid, "min.x": {"$in": [3, 12]}}, {"$set": {"jumbo": True}})
        config.shards.update_one({"_id": first}, {"$set": {"draining": True}})
        query = {"uuid": uuid, "shard": first, "jumbo": {"$ne": True}}
        try:
            # A genuine config server does not see at once what was not written by its own commands.
            eventually(lambda: not status(deployment, "jumbo")["balancerCompliant"], what="the shard is draining")
            before = status(deployment, "jumbo")
            balance(deployment, lambda: config.chunks.count_documents(query) == 0)
            after = status(deployment, "jumbo")
        finally:
            config.shards.update_one({"_id": first}, {"$unset": {"draining": True}})
            config.chunks.update_many({"uuid": uuid}, {"$unset": {"jumbo": True}})
        return [before, moves(deployment, "bal.jumbo"), after, placement(deployment, "jumbo")]

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_decisions_about_several_zones(both: Both) -> None:
    """Chunks of two zones, and of none, with some chunks of each on the wrong shard."""

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.zones", 2, 4, 6, 8)
        # Otherwise it could not return before the delay is over after which a range is deleted.
        moved = deployment.move("bal.zones", 1, min={"x": 2}, max={"x": 4}, waitForDelete=True)
        assert moved["ok"], moved
        with zone(deployment, 0, "bfirst", zones=(2, 4)), zone(deployment, 1, "bsecond", zones=(4, 8)):
            before = status(deployment, "zones")
            balance(deployment, lambda: bool(status(deployment, "zones")["balancerCompliant"]))
            return [before, placement(deployment, "zones"), sorted(moves(deployment, "bal.zones")[1:], key=str)]

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_collections_that_are_left_alone(both: Both) -> None:
    """Three collections violate a zone; of two of them nothing moves."""

    def ask(deployment: Deployment) -> list[Any]:
        names = ("quiet", "forbidden", "free")
        for name in names:
            collection(deployment, f"bal.{name}", 0, 5)
        collections = deployment.config.config["collections"]
        collections.update_one({"_id": "bal.quiet"}, {"$set": {"noBalance": True}})
        collections.update_one({"_id": "bal.forbidden"}, {"$set": {"permitMigrations": False}})
        with zone(deployment, 1, "balone", **dict.fromkeys(names, (0, 5))):
            balance(deployment, lambda: bool(status(deployment, "free")["balancerCompliant"]))
            return [(status(deployment, name), moves(deployment, f"bal.{name}")) for name in names]

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_decisions_about_a_draining_shard_with_a_zone(both: Both) -> None:
    """Chunks of the shard's own zone cannot move, and do not count as a violation; the rest leaves."""

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.zoned_drain", 0, 5, 8)
        shards, first = deployment.config.config.shards, deployment.shard_ids[0]
        query = {"uuid": deployment.entry("bal.zoned_drain")["uuid"], "shard": first, "min": {"$ne": {"x": 0}}}
        chunks = deployment.config.config.chunks
        with zone(deployment, 0, "bstays", zoned_drain=(0, 5)):
            shards.update_one({"_id": first}, {"$set": {"draining": True}})
            try:
                eventually(lambda: not status(deployment, "zoned_drain")["balancerCompliant"], what="it is draining")
                balance(deployment, lambda: chunks.count_documents(query) == 0)
                after = status(deployment, "zoned_drain")
            finally:
                shards.update_one({"_id": first}, {"$unset": {"draining": True}})
        return [moves(deployment, "bal.zoned_drain"), after, placement(deployment, "zoned_drain")]

    assert_same(both, ask)


@pytest.mark.exhaustive
@pytest.mark.parametrize("attempts", [True, False])
def test_decisions_about_chunks_that_are_too_large(both: Both, *, attempts: bool) -> None:
    """A chunk of several chunk sizes that violates its zone moves as a whole if the setting says so."""
    name = f"large_{attempts}".lower()

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, f"bal.{name}", 1000)
        run(deployment, {"_configsvrConfigureCollectionBalancing": f"bal.{name}", "chunkSize": 1})
        fill(deployment, name, 40)
        settings = deployment.config.config.settings
        setting = {"attemptToBalanceJumboChunks": attempts}
        settings.update_one({"_id": "balancer"}, {"$set": setting}, upsert=True)
        try:
            with zone(deployment, 1, "blarge", **{name: (LOW, 1000)}):
                balance(deployment, lambda: bool(status(deployment, name)["balancerCompliant"]))
                bounds = [each[:2] for each in moves(deployment, f"bal.{name}")]
                assert len(bounds) == 1 or not attempts
                return [
                    bounds if attempts else "several",
                    sorted({shard for _, shard in placement(deployment, name)[:-1]}),
                ]
        finally:
            settings.update_one({"_id": "balancer"}, {"$unset": {"attemptToBalanceJumboChunks": 1}})

    assert_same(both, ask)


@pytest.mark.exhaustive
def test_defragmentation(both: Both) -> None:
    """Small chunks go to a neighbour, and chunks that belong together are merged, within zones.

    Two small neighbours on different shards are left out: MongoDB moves the one of the shard with more data, ours the
    lower one.
    """

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.fragments", 0, 5, 10, 20, 30, 40)
        run(deployment, {"_configsvrConfigureCollectionBalancing": "bal.fragments", "chunkSize": 4})
        fill(deployment, "fragments", 55)
        for low, high in ((5, 10), (20, 30)):
            bounds = {"min": {"x": low}, "max": {"x": high}}
            moved = deployment.move("bal.fragments", 1, **bounds, waitForDelete=True)
            assert moved["ok"], moved
        before = len(moves(deployment, "bal.fragments"))
        with (
            server_parameter(deployment.config, "chunkDefragmentationThrottlingMS", 0),
            zone(deployment, 0, "bfragments", fragments=(10, 20)),
        ):
            command = {"_configsvrConfigureCollectionBalancing": "bal.fragments", "defragmentCollection": True}
            begun = [run(deployment, command), status(deployment, "fragments")]
            balance(deployment, lambda: "defragmentCollection" not in deployment.entry("bal.fragments"))
        return [
            *begun,
            placement(deployment, "fragments"),
            moves(deployment, "bal.fragments")[before:],
            status(deployment, "fragments"),
        ]

    assert_same(both, ask)


@pytest.fixture
def both_by_count(mongod_binary: str, tmp_path: Path, own_inside: Deployment) -> Iterator[Both]:
    """Balancers that even out numbers of chunks: MongoDB's does so without the feature that made it go by size."""
    by_count = ("--setParameter", "featureFlagBalanceAccordingToDataSize=false")
    settings = own_inside.config.config.settings
    with (
        genuine_cluster(mongod_binary, tmp_path, routers=0, config_options=by_count) as cluster,
        genuine_deployment(cluster) as genuine,
        fail_point(genuine.config, "overrideBalanceRoundInterval", intervalMs=200),
    ):
        run(genuine, {"_configsvrBalancerStop": 1})
        settings.update_one({"_id": "balancer"}, {"$set": {"balancerPolicy": "chunkCount"}}, upsert=True)
        try:
            yield genuine, own_inside
        finally:
            settings.update_one({"_id": "balancer"}, {"$unset": {"balancerPolicy": 1}})


@pytest.mark.exhaustive
def test_decisions_by_the_number_of_chunks(both_by_count: Both) -> None:
    """Whole chunks move, the first ones first; then a zone takes a chunk of one shard, and has one on the other.

    If it took two, ours would even out the rest, whereas MongoDB's ideal number counts all chunks.
    """

    def ask(deployment: Deployment) -> list[Any]:
        collection(deployment, "bal.counted", 0, 5, 10, 15, 20, 25, 30)
        before = status(deployment, "counted")
        balance(deployment, lambda: bool(status(deployment, "counted")["balancerCompliant"]))
        begun = moves(deployment, "bal.counted")
        with zone(deployment, 1, "bcounted", counted=(10, 20)):
            violated = status(deployment, "counted")
            balance(deployment, lambda: bool(status(deployment, "counted")["balancerCompliant"]))
            return [before, begun, violated, moves(deployment, "bal.counted"), placement(deployment, "counted")]

    assert_same(both_by_count, ask)
