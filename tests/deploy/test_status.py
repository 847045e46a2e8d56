"""The text of ``shardwright status``: migrations, reshardings, and the last line, with what to do next."""

import json
from typing import Any

import pytest
from bson import MaxKey, MinKey

from shardwright.deploy.cluster import json_line
from shardwright.deploy.status import cluster_text, migration_text, resharding_text

MIGRATION = {
    "process": "shard0.0.shardd",
    "ns": "shop.orders",
    "from": "shard0",
    "to": "shard1",
    "min": {"customer": 5000},
    "max": {"customer": MaxKey()},
    "step": "step 3 of 6",
    "seconds": 7,
    "documents": 200_000,
    "state": "clone",
    "documentsCloned": 1_234,
    "bytesCloned": 1_260_000,
    "documentsQueued": 17,
}

RESHARDING = {
    "process": "shard0.0.shardd",
    "ns": "shop.orders",
    "key": {"country": 1},
    "state": "cloning",
    "seconds": 7,
    "remainingSeconds": 12,
    "documents": 200_000,
    "documentsCopied": 1_234,
    "bytes": 200_000_000,
    "bytesCopied": 1_260_000,
    "changesFetched": 17,
    "changesApplied": 3,
}


def document(*running: str) -> dict[str, Any]:
    processes = [
        {"name": name, "role": role, "address": "h:1", "pid": 7 if name in running else None, "log": "l"}
        for name, role in (("config.0.configd", "configd"), ("router.0", "router"), ("router.1", "router"))
    ]
    return {
        "dir": "/c",
        "uri": "mongodb://h:1,h:2/",
        "processes": processes,
        "metrics": {},
        "migrations": [],
        "reshardings": [],
    }


@pytest.mark.parametrize(
    ("running", "end"),
    [
        (["config.0.configd", "router.1"], "connect with: mongosh mongodb://h:1,h:2/"),
        (["config.0.configd"], "no router is running: start one with `shardwright restart router.0 --dir /c`"),
        ([], "the cluster is stopped: start it with `shardwright up --dir /c`"),
    ],
)
def test_the_last_line_is_what_to_do_next(running: list[str], end: str) -> None:
    assert cluster_text(document(*running)).splitlines()[-1] == end


def test_donor_in_one_line() -> None:
    assert migration_text(MIGRATION) == (
        "shard0.0.shardd: shop.orders [5000, MaxKey) shard0 -> shard1: step 3 of 6 clone, "
        "1,234 of 200,000 documents, 1.3 MB, 17 changes to transfer, 7 s"
    )


def test_a_recipient_has_no_queue_of_changes() -> None:
    received = {name: value for name, value in MIGRATION.items() if name != "documentsQueued"} | {"state": ""}
    assert migration_text(received).endswith(": step 3 of 6, 1,234 of 200,000 documents, 1.3 MB, 7 s")


def test_bounds_of_any_type_are_json() -> None:
    line = json_line({"migrations": [{"min": {"key": MinKey()}}]})
    assert json.loads(line) == {"migrations": [{"min": {"key": {"$minKey": 1}}}]}


def test_a_recipient_in_one_line() -> None:
    assert resharding_text(RESHARDING) == (
        'shard0.0.shardd: resharding shop.orders by {"country": 1}: cloning, 1,234 of 200,000 documents, 1.3 MB, '
        "3 of 17 changes, 7 s, about 12 s left"
    )


def test_an_unknown_remaining_time_is_left_out() -> None:
    assert resharding_text(RESHARDING | {"remainingSeconds": -1}).endswith("3 of 17 changes, 7 s")
