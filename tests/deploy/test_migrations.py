import json

from bson import MaxKey, MinKey

from shardwright.deploy.cluster import json_line
from shardwright.deploy.migrations import migration_text

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
