"""Resharding as shown during and after it: ``$currentOp``, ``serverStatus``, the launcher."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.fail_points import fail_point
from tests.integration.sharded import Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.resharding.resharded import LAST, new_collection, resharding, split_parts

_ORIGINATING = {"unique": False, "collation": {"locale": "simple"}}
_COMMON = ["type", "desc", "op", "ns", "originatingCommand", "totalOperationTimeElapsedSecs"]
_OF_ROLE = {
    "Coordinator": ["coordinatorState"],
    "Donor": ["countWritesDuringCriticalSection", "totalCriticalSectionTimeElapsedSecs", "donorState"],
    "Recipient": [
        "remainingOperationTimeEstimatedSecs",
        *("approxDocumentsToCopy", "documentsCopied", "approxBytesToCopy", "bytesCopied", "totalCopyTimeElapsedSecs"),
        *("oplogEntriesFetched", "oplogEntriesApplied", "totalApplyTimeElapsedSecs", "recipientState"),
    ],
}
"""The fields that MongoDB 6.0.5 shows, without its two histograms of recipients."""


@pytest.fixture(scope="module")
def collection(cluster: RunningCluster) -> Iterator[Documents]:
    with cluster.client(w="majority") as client:
        found = new_collection(client, "resharding_shown")
        found.insert_many([{"_id": n, "key": n % LAST, "other": n * 7 % LAST, "text": "x" * 50} for n in range(400)])
        yield found
        client.drop_database(found.database.name)


def shown(client: Client, namespace: str) -> list[Document]:
    pipeline: list[Document] = [
        {"$currentOp": {"allUsers": True}},
        {"$match": {"originatingCommand.reshardCollection": namespace}},
    ]
    return list(client.admin.aggregate(pipeline))


def check_fields(role: str, operation: Document, namespace: str, identity: UUID) -> None:
    added = {"shard"} & operation.keys()  # by the router
    assert [name for name in operation if name not in added] == [*_COMMON, *_OF_ROLE[role], "opStatus"]
    assert operation["desc"] == f"Resharding{role}Service {identity}"
    assert operation["originatingCommand"] == {"reshardCollection": namespace, "key": {"other": 1}, **_ORIGINATING}
    assert operation["opStatus"] == "running"


def test_an_operation_under_way(collection: Documents, cluster: RunningCluster) -> None:
    client, namespace = collection.database.client, collection.full_name
    with (
        cluster.direct("shard1.0.shardd") as upper,
        cluster.direct("config.0.configd") as config,
        fail_point(upper, "reshardingPauseRecipientDuringOplogApplication") as point,
        resharding(client, namespace, {"other": 1}, _presetReshardedChunks=split_parts("other")),
    ):
        point.wait_entered()
        identity = UUID(bytes=bytes(config.config.reshardingOperations.find_one({}, {"_id": 1})["_id"]))  # type: ignore[index]
        [coordinator] = shown(config, namespace)
        check_fields("Coordinator", coordinator, namespace, identity)
        assert coordinator["coordinatorState"] in ("cloning", "applying")
        command = config.admin.command({"currentOp": 1, "originatingCommand.reshardCollection": namespace})
        assert [each["desc"] for each in command["inprog"]] == [coordinator["desc"]]
        parts = shown(client, namespace)
        for part in parts:
            check_fields("Donor" if "donorState" in part else "Recipient", part, namespace, identity)
        assert sorted((part["shard"], "donorState" in part) for part in parts) == [
            *(("shard0", False), ("shard0", True), ("shard1", False), ("shard1", True))
        ]

        def are_copied() -> bool:
            return sum(int(part.get("documentsCopied", 0)) for part in shown(client, namespace)) == 400

        eventually(are_copied, what="all documents are copied")
        assert sum(part.get("approxDocumentsToCopy", 0) for part in shown(client, namespace)) == 400
        reported = cluster.local.reshardings()
        assert [each["process"] for each in reported] == ["shard0.0.shardd", "shard1.0.shardd"]
        assert sum(each["documentsCopied"] for each in reported) == 400
        point.turn_off()


def test_totals(collection: Documents, cluster: RunningCluster) -> None:
    client, namespace = collection.database.client, collection.full_name
    names = ("config.0.configd", "shard0.0.shardd", "shard1.0.shardd")

    def totals() -> list[Document]:
        found = []
        for name in names:
            with cluster.direct(name) as daemon:
                statistics = daemon.admin.command("serverStatus").get("shardingStatistics", {})
                found.append(statistics.get("resharding", {}))
        return found

    before = totals()
    client.admin.command("reshardCollection", namespace, key={"_id": 1}, numInitialChunks=4)
    after = totals()

    def added(name: str) -> list[int]:
        return [new[name] - old.get(name, 0) for old, new in zip(before, after, strict=True)]

    assert added("countReshardingOperations") == added("countReshardingSuccessful") == [1, 1, 1]
    assert added("countReshardingFailures") == added("countReshardingCanceled") == [0, 0, 0]
    copied = added("documentsCopied")
    assert copied[0] == 0
    assert sum(copied) == 400
    assert after[0]["minShardRemainingOperationTimeEstimatedMillis"] == 0
    fetched = after[1]["collClonerFillBatchForInsertLatencyMillis"]
    assert list(fetched) == [
        *("(-inf, 10)", "[10, 100)", "[100, 1000)", "[1000, 10000)", "[10000, inf)"),
        "totalCount",
    ]
    assert fetched["totalCount"] == sum(each["count"] for name, each in fetched.items() if name != "totalCount") > 0
    with cluster.direct("shard0.0.shardd") as daemon:
        assert "shardingStatistics" not in daemon.admin.command("serverStatus", shardingStatistics=0)
