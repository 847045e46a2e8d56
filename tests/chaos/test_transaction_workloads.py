"""The workloads of transactions on a plain mongod, which must satisfy their checkers, also if replies are lost."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest
from pymongo import MongoClient

from bench.mongods import primary_mongod
from shardwright.deploy.mongod import find_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from tests.chaos.checkers.append_history import Outcome, Transaction
from tests.chaos.history import History
from tests.chaos.player import Player
from tests.chaos.stage import Shape, Stage
from tests.chaos.workloads.append_lists import AppendLists
from tests.chaos.workloads.bank import Bank
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import World
from tests.integration.waiting import eventually
from tests.local_cluster import Client

if TYPE_CHECKING:
    from tests.migration.fault_cluster import FaultCluster

STEPS = 300
"""At least so many are taken."""

LOST_COMMITS = {"failCommands": ["commitTransaction"], "closeConnection": True}
LOST_REPLIES = {
    "failCommands": ["commitTransaction"],
    "writeConcernError": {"code": 91, "errmsg": "shutting down"},
    "errorLabels": ["RetryableWriteError"],
}

W = TypeVar("W", bound=Workload)


@dataclass(frozen=True)
class OneMongod:
    """Stands in for a cluster: all routers are one mongod."""

    address: str
    client: Client

    @property
    def router_addresses(self) -> list[str]:
        return [self.address] * 3

    def router(self, index: int = 0) -> Client:
        return self.client


class PlainStage(Stage):
    """A stage whose collections are not sharded.

    They exist before any transaction: while a collection is being created, mongod's transactions may see its first
    documents appear between two reads, snapshot reads too.
    """

    def create(self, *worlds: World) -> None:
        for world in worlds:
            self.collections.create_collection(world.name)
            self.worlds.append(world)


@pytest.fixture(scope="module")
def mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneMongod]:
    """A mongod with fail points and short transactions.

    A client that abandons a commit leaves locks behind, and may then wait for them itself until that transaction ends.
    """
    with PortReservation() as ports:
        plan = ProcessPlan("plain", Role.MONGOD, ports.hold_free(), "plain")
        ports.release(*plan.ports())
        directory = tmp_path_factory.mktemp("plain") / "mongod"
        parameters = ("--setParameter", "enableTestCommands=1", "--setParameter", "transactionLifetimeLimitSeconds=2")
        with (
            primary_mongod(find_mongod(), plan, directory, 0.5, *parameters),
            MongoClient[dict[str, Any]](plan.address, directConnection=True) as client,
        ):
            yield OneMongod(plan.address, client)


def played(
    mongod: OneMongod,
    kind: Callable[[Stage], W],
    tmp_path: Path,
    fault: dict[str, Any],
    is_enough: Callable[[W], bool],
) -> W:
    """A workload whose clients have taken some steps, and enough of them, while every tenth commit has a fault."""
    cluster = cast("FaultCluster", mongod)
    with closing(History(tmp_path / "history.jsonl")) as history:
        workload = kind(PlainStage(cluster, Shape(), f"played_{tmp_path.name}", "seed", history))
        workload.set_up()
        players = [Player(workload, number) for number in range(workload.clients)]
        mode = {"activationProbability": 0.1} if fault else "off"
        mongod.client.admin.command("configureFailPoint", "failCommand", mode=mode, data=fault)
        try:
            for player in players:
                player.start()
            eventually(
                lambda: (
                    history.anomalies
                    or (sum(each.client.operations for each in players) > STEPS and is_enough(workload))
                ),
                what="enough has happened",
            )
        finally:
            mongod.client.admin.command("configureFailPoint", "failCommand", mode="off")
            for player in players:
                player.stop()
            for player in players:
                player.join(60)
        assert history.anomalies == []
    return workload


FAULTS = [{}, LOST_COMMITS, LOST_REPLIES]


@pytest.mark.parametrize("fault", FAULTS, ids=["healthy", "lost commits", "lost replies"])
def test_bank(mongod: OneMongod, tmp_path: Path, fault: dict[str, Any]) -> None:
    workload = played(mongod, Bank, tmp_path, fault, lambda bank: len(bank.reads) == 3)
    assert workload.check_last_state() == []
    # A check that nothing could fail would show nothing.
    workload.stage.collections.accounts.update_one({}, {"$inc": {"balance": 1}})
    assert len(workload.check_last_state()) == 2


@pytest.mark.parametrize("fault", FAULTS, ids=["healthy", "lost commits", "lost replies"])
def test_append_lists(mongod: OneMongod, tmp_path: Path, fault: dict[str, Any]) -> None:
    expected = {Outcome.COMMITTED, Outcome.ABORTED, *([Outcome.UNKNOWN] if fault else [])}
    workload = played(mongod, AppendLists, tmp_path, fault, lambda lists: expected <= outcomes(lists))
    assert workload.check_history() == []
    for world in workload.stage.worlds:
        workload.stage.collections[world.name].update_one({}, {"$pop": {"values": -1}})
    assert workload.check_history() != []


def outcomes(workload: Workload) -> set[Outcome]:
    """Return the outcomes of the transactions so far."""
    results = [operation.result for operation in list(workload.stage.recorder.operations)]
    return {result.outcome for result in results if isinstance(result, Transaction)}
