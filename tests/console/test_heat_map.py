"""The heat map shows what shards have counted."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson import MaxKey, MinKey

from shardwright.console.drawing import HEAT_STEPS, heat_step
from shardwright.console.heat_map import cells_of
from shardwright.sharding.key_statistics import Counts, KeyRange
from tests.console.browser import Browser, running_console
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster
from tests.sharding.chunk_worlds import bound, key

NAMESPACE: Final = "heat.orders"
HOT: Final = 150
TIMES: Final = 4_000


def part(low: object, high: object, reads: int) -> KeyRange:
    return KeyRange("d.c", bound(low), bound(high), key(low), key(high), Counts(reads))


def test_cells() -> None:
    bands = [part(0, 10, 0), part(10, 20, 0), part(20, 30, 0)]
    groups = [(0, part(0, 10, 5)), (0, part(10, 30, 8)), (1, part(12, 13, 3)), (7, part(0, 10, 99))]
    assert cells_of(bands, groups, "reads", 2) == [[5, 0], [4, 3], [4, 0]]
    assert cells_of([], groups, "reads", 2) == []


def test_colours_are_logarithmic() -> None:
    steps = [heat_step(10**power, 10**7) for power in range(8)]
    assert steps == sorted(steps)
    assert (steps[-1], heat_step(0, 10)) == (HEAT_STEPS - 1, 0)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster that writes its numbers every half second."""
    directory = tmp_path_factory.mktemp("counting")
    with running_cluster(directory / "cluster", "--set-parameter", "keyStatisticsIntervalSecs=0.5") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def browser(counting: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_console(counting.directory, tmp_path_factory.mktemp("console") / "console.log") as console:
        yield console.browser()


def load(client: Client) -> None:
    """A collection on two shards, one of its chunks read often and written seldom."""
    first, second = sorted(each["_id"] for each in client.config.shards.find())
    client.admin.command("enableSharding", "heat", primaryShard=first)
    client.admin.command("shardCollection", NAMESPACE, key={"x": 1})
    for middle in (100, 200):
        client.admin.command("split", NAMESPACE, middle={"x": middle})
    client.admin.command("moveChunk", NAMESPACE, find={"x": HOT}, to=second)
    # A sampled insert counts with all of its documents, which must be fewer than the updates.
    client.heat.orders.insert_many([{"x": number} for number in range(0, 300, 10)])
    for _ in range(TIMES):
        assert client.heat.orders.find_one({"x": HOT})
    for number in range(TIMES // 4):
        client.heat.orders.update_one({"x": 50}, {"$set": {"y": number}})


def test_reads_and_writes_are_seen_where_they_are(counting: RunningCluster, browser: Browser) -> None:
    with counting.client() as client:
        load(client)
        kept = client.config.command("listCollections", filter={"name": {"$regex": "^keyStatistics"}})
        assert all(each["options"]["capped"] for each in kept["cursor"]["firstBatch"])
        assert len(kept["cursor"]["firstBatch"]) == 2

        def numbers() -> dict[Any, tuple[int, int]]:
            # The console keeps a map for some seconds; the collection has the numbers at once.
            found: dict[Any, tuple[int, int]] = {}
            for document in client.config.keyStatistics.find({"collections.ns": NAMESPACE}):
                for each in document["collections"]:
                    for part in each["ranges"] if each["ns"] == NAMESPACE else ():
                        reads, writes = found.get(part["min"]["x"], (0, 0))
                        found[part["min"]["x"]] = reads + part["reads"], writes + part["writes"]
            return found

        def has_both() -> bool:
            found = numbers()
            return found.get(100, (0, 0))[0] > TIMES / 2 and found.get(MinKey(), (0, 0))[1] > TIMES / 16

        eventually(has_both, what="the numbers are written")
        found = numbers()
        assert found[100][0] < TIMES * 2
        assert found[100][1] < found[MinKey()][1]
    data = browser.api("heat-map", ns=NAMESPACE)
    hottest = max(data["bands"], key=lambda band: int(band["reads"]))
    assert (hottest["min"], hottest["max"]) == ({"x": 100}, {"x": 200})
    assert sum(map(sum, data["cells"])) == pytest.approx(
        sum(each["reads"] for each in data["bands"]), abs=len(data["cells"])
    )
    assert len(data["columns"]) == len(data["cells"][0]) == 60
    written = browser.api("heat-map", ns=NAMESPACE, measure="writes")
    assert max(written["bands"], key=lambda band: int(band["writes"]))["min"] == {"x": MinKey()}
    assert written["bands"][-1]["max"] in ({"x": 200}, {"x": MaxKey()})


def test_the_page(browser: Browser) -> None:
    text = browser.get("/heat", ns=NAMESPACE).text
    assert 'class="heat"' in text
    assert f"heat{HEAT_STEPS - 1}" in text
    assert "min up to 100" in text
    assert browser.get("/heat", ns=NAMESPACE, window="weeks").status == 200
    assert browser.get("/heat", ns=NAMESPACE, window="year").status == 400
    assert browser.get("/heat", ns="no.thing").status == 404
