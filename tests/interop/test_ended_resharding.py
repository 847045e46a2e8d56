"""``abort-``, ``commit-`` and ``cleanupReshardCollection`` in each stage, on genuine servers and on ours."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.genuine_cluster import SHARDS
from tests.integration.sharded import LOWER
from tests.interop.deployment import Deployment, Document
from tests.local_cluster import Client, RunningCluster
from tests.resharding.resharded import resharding

NAMESPACE: Final = "interop_ended_resharding.c"
KEYS: Final = ({"a": 1}, {"b": 1})

CLONING: Final = "reshardingPauseRecipientBeforeCloning"
"""Of both kinds of shards."""

WAIT_MS: Final = 60_000
AT_ONCE_SECONDS: Final = 10.0
"""Within which a command is answered that waits for nothing."""
HELD_SECONDS: Final = 0.5
"""For how long a command is seen to wait."""


class Sending(threading.Thread):
    """A command to the config servers, sent in a thread of its own.

    Attributes:
        answer: ``ok``, or the code and the message of the error; None until then.
    """

    def __init__(self, inside: Deployment, name: str, namespace: str) -> None:
        super().__init__()
        self._inside, self._name, self._namespace = inside, name, namespace
        self.answer: object = None
        self.start()

    def run(self) -> None:
        """Send it."""
        concern = None if "Cleanup" in self._name else {"w": "majority"}
        reply = self._inside.on_config({self._name: self._namespace}, write_concern=concern)
        self.answer = "ok" if reply["ok"] else (reply["code"], reply["codeName"], reply["errmsg"])

    def end(self, seconds: float = AT_ONCE_SECONDS) -> object:
        """Wait for the answer; None if there is none yet."""
        self.join(seconds)
        return self.answer


@dataclass
class Cluster:
    """One of the two clusters.

    Attributes:
        router: a client of a router.
        inside: its servers.
        decided: where an operation can wait that has been decided: the server, and the fail point.
    """

    router: Client
    inside: Deployment
    decided: tuple[Client, str]

    def send(self, what: str, namespace: str = NAMESPACE) -> Sending:
        return Sending(self.inside, f"_configsvr{what}ReshardCollection", namespace)

    @contextmanager
    def resharding_at(self, server: Client, point: str) -> Iterator[list[object]]:
        """A resharding to the other key, which waits at a fail point during the block; then the list has its error."""
        entry = self.inside.entry(NAMESPACE)
        (key,) = (each for each in KEYS if each != entry["key"])
        entered = _configure(server, point, "alwaysOn")["count"]
        outcome: list[object] = []
        with resharding(self.router, NAMESPACE, key) as running:
            try:
                wait = {"waitForFailPoint": point, "timesEntered": entered + 1, "maxTimeMS": WAIT_MS}
                server.admin.command(wait)
                yield outcome
            finally:
                _configure(server, point, "off")
                error = running.wait()
                outcome.append(None if error is None else (error.code, error.details["errmsg"]))  # type: ignore[attr-defined]

    def cloning(self) -> tuple[Client, str]:
        return self.inside.shards[0], CLONING


def _configure(server: Client, point: str, mode: str) -> Mapping[str, Any]:
    reply: Document = server.admin.command({"configureFailPoint": point, "mode": mode})
    return reply


@pytest.fixture(scope="module")
def clusters(client: Client, cluster: RunningCluster, both: tuple[Deployment, Deployment]) -> Iterator[list[Cluster]]:
    """The genuine cluster and ours, each with a collection."""
    genuine, own = both
    with cluster.direct("router.0") as own_router:
        found = [
            Cluster(client, genuine, (genuine.config, "reshardingPauseCoordinatorBeforeRemovingStateDoc")),
            Cluster(own_router, own, (own.shards[0], "reshardingPauseAfterCommit")),
        ]
        for server in (genuine.config, *genuine.shards):
            server.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
        db, _, collection = NAMESPACE.partition(".")
        for each, primary in zip(found, (SHARDS[0], LOWER), strict=True):
            each.router.admin.command("enableSharding", db, primaryShard=primary)
            each.router.admin.command("shardCollection", NAMESPACE, key=KEYS[0])
            each.router[db][collection].insert_many({"a": number, "b": -number} for number in range(50))
        yield found
        for each in found:
            each.router.drop_database(db)


@pytest.mark.parametrize("namespace", [NAMESPACE, f"{NAMESPACE}.unsharded"])
@pytest.mark.parametrize("what", ["Abort", "Commit", "Cleanup"])
def test_without_an_operation(clusters: list[Cluster], what: str, namespace: str) -> None:
    genuine, own = (cluster.send(what, namespace).end() for cluster in clusters)
    assert own == genuine
    assert own is not None


@pytest.mark.parametrize("what", ["Abort", "Cleanup"])
def test_before_the_decision(clusters: list[Cluster], what: str) -> None:
    """It waits until nothing is left of the operation, which ends with an error."""
    found = []
    for cluster in clusters:
        with cluster.resharding_at(*cluster.cloning()) as outcome:
            sending = cluster.send(what)
            sending.end(HELD_SECONDS)
        found.append((sending.end(), outcome))
    assert found[1] == found[0]
    assert found[0] == ("ok", [(341, "aborted")])


def test_commit_is_only_requested(clusters: list[Cluster]) -> None:
    """The answer does not wait for the clone."""
    for cluster in clusters:
        with cluster.resharding_at(*cluster.cloning()) as outcome:
            assert cluster.send("Commit").end() == "ok", cluster.inside
        assert outcome == [None], cluster.inside


def test_after_the_decision(clusters: list[Cluster]) -> None:
    """``abort`` and ``cleanup`` wait for the end too; only ``abort`` then says that it was late."""
    found = []
    for cluster in clusters:
        with cluster.resharding_at(*cluster.decided) as outcome:
            assert cluster.send("Commit").end() == "ok", cluster.inside
            late = [cluster.send("Abort"), cluster.send("Cleanup")]
            held = [each.end(HELD_SECONDS) for each in late]
        found.append((held, [each.end() for each in late], outcome))
    assert found[1] == found[0]
    text = "Can't abort resharding operation after the decision has been persisted"
    assert found[0] == ([None, None], [(340, "ReshardCollectionCommitted", text), "ok"], [None])
