"""The overview from the replies of a stub: shards by the names of their replica sets, and parts that do not answer."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from shardwright.console import overview as module
from shardwright.console.metrics import Sampler, Scrape
from shardwright.console.overview import COUNTED_MAX, overview
from shardwright.console.pages import Renderer
from shardwright.console.reader import Document, Reader, Refused
from shardwright.console.settings import Settings, Target

OPEN = Settings("mongodb://r")
TARGETS = (
    Target("router.0", "r:9", "router", listens="r:1"),
    Target("d0", "d0:9", "shardd", "set0", "d0:1"),
    Target("c0", "c0:9", "configd", "configs", "c0:1"),
)


class Stub(Reader):
    """A cluster with a shard whose name is not the name of its replica set."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None))
        self.catalog: dict[str, list[Document]] = {
            "shards": [{"_id": "east", "host": "set0/d0:1"}],
            "mongos": [{"_id": "r:1", "ping": datetime.now(UTC)}],
            "version": [{"clusterId": "1"}],
        }
        self.databases = 1
        self.members: dict[str, Any] = {
            "set0": {"hosts": [{"addr": "d0:1", "ok": True, "ismaster": True}]},
            "configs": {"hosts": [{"addr": "c0:1", "ok": True, "ismaster": True}]},
        }
        self.commands: list[str] = []
        self.silent: set[str] = set()

    async def find(self, db: str, collection: str, *_: object, **_options: object) -> list[Document]:
        del db
        if "config" in self.silent:
            raise Refused("no answer", is_away=True)
        return self.catalog[collection]

    async def command(self, command: Mapping[str, Any], db: str = "admin", *, seconds_max: float = 0) -> Document:
        del db, seconds_max
        name = next(iter(command))
        self.commands.append(name)
        if name in self.silent:
            raise Refused("no answer", is_away=True)
        stored = {each["_id"]: 5 for each in self.catalog["shards"]}
        replies: dict[str, Document] = {
            "connPoolStats": {"replicaSets": self.members},
            "getShardMap": {"map": {"config": "configs/c0:1", "east": "set0/d0:1"}},
            "balancerStatus": {"mode": "full"},
            "buildInfo": {"version": "6.0.1"},
            "listDatabases": {"databases": [{"name": f"d{n}", "shards": stored} for n in range(self.databases)]},
            "dbStats": {
                "raw": {"set0/d0:1": {"objects": 2, "dataSize": 3, "fsUsedSize": 99, "fsTotalSize": 100}},
            },
        }
        return replies.get(name, {})

    def overview(self, sampler: Sampler | None = None, settings: Settings = OPEN) -> Document:
        return asyncio.run(overview(self, sampler or Sampler(settings.targets, 1), settings))


def found(document: Document) -> list[tuple[str, str]]:
    return [(each["severity"], each["where"]) for each in document["problems"]]


def rendered(document: Document) -> str:
    page = asyncio.run(Renderer(OPEN).page("overview.html", "Overview", None, data=document))
    return bytes(page.body).decode()


def test_members_and_sizes_belong_to_the_replica_set() -> None:
    stub = Stub()
    document = stub.overview()
    [shard] = document["shards"]
    assert (shard["_id"], shard["documents"], shard["bytes"], shard["storageBytes"]) == ("east", 2, 3, 5)
    assert [each["state"] for each in shard["members"]] == ["primary"]
    assert [each["state"] for each in document["configServers"]["members"]] == ["primary"]
    assert found(document) == [("error", "east")], "the disk is full"
    stub = Stub()
    stub.members["set0"]["hosts"][0]["ismaster"] = False
    assert found(stub.overview()) == [("error", "east")] * 2


def test_a_new_shard_without_sizes_is_shown_and_its_members_are_not_known() -> None:
    stub = Stub()
    stub.catalog["shards"].append({"_id": "west", "host": "set1/d1:1"})
    document = stub.overview()
    assert [each["bytes"] for each in document["shards"]] == [3, None]
    assert ("warning", "west") in found(document)
    assert "2 documents, with orphans" in rendered(document)


def test_sizes_and_disks_cost_two_commands_for_many_databases() -> None:
    stub = Stub()
    stub.databases = COUNTED_MAX + 1
    document = stub.overview()
    [shard] = document["shards"]
    assert stub.commands.count("dbStats") == 1
    assert (shard["storageBytes"], shard["documents"]) == (5 * stub.databases, None)
    assert ("error", "east") in found(document)
    assert "on disk" in rendered(document)


def test_a_cluster_whose_config_servers_are_silent_has_an_overview() -> None:
    stub = Stub()
    stub.silent = {"config", "balancerStatus", "listDatabases"}
    document = stub.overview()
    assert [(each["_id"], len(each["members"])) for each in document["shards"]] == [("east", 1)]
    assert (document["refusals"], found(document)) == (["no answer"], [("warning", "cluster")])
    rendered(document)


def test_metrics_show_processes_while_no_router_answers() -> None:
    stub, settings = Stub(), Settings("mongodb://r", targets=TARGETS)
    stub.silent = {"config", "balancerStatus", "listDatabases", "connPoolStats", "getShardMap", "buildInfo"}
    sampler = Sampler(TARGETS, 1, silent=frozenset({"router.0", "d0"}), latest=Scrape(0, {"c0": {}}))
    document = stub.overview(sampler, settings)
    assert [(each["address"], each["isAlive"]) for each in document["routers"]] == [("r:1", False)]
    assert [(each["_id"], each["members"][0]["state"]) for each in document["shards"]] == [("set0", "down")]
    assert {("error", "router.0"), ("error", "d0")} <= set(found(document))
    rendered(document)
    stub.silent |= {"ping"}
    stub.forget()
    with pytest.raises(Refused):
        stub.overview()


@pytest.mark.parametrize(("seconds", "is_alive"), [(10, True), (100, False)])
def test_a_router_without_metrics_serves_while_it_reports(seconds: int, *, is_alive: bool) -> None:
    stub = Stub()
    stub.catalog["mongos"] = [{"_id": "r:1", "ping": datetime.now(UTC) - timedelta(seconds=seconds)}]
    assert [each["isAlive"] for each in stub.overview()["routers"]] == [is_alive]


def test_a_hanging_part_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.console.reader.PART_SECONDS_MAX", 0.2)
    monkeypatch.setattr(module, "_SIZES_SECONDS", 0.0)

    class Hanging(Stub):
        async def find(self, *_: object, **_options: object) -> list[Document]:
            await asyncio.sleep(3600)
            return []

    async def run() -> None:
        stub = Hanging()
        async with asyncio.timeout(2):
            document = await overview(stub, Sampler((), 1), OPEN)
        assert [each["_id"] for each in document["shards"]] == ["east"]

    asyncio.run(run())
