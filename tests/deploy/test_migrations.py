import json

from bson import MaxKey, MinKey

from deploy.cluster import json_line
from deploy.migrations import migration_text

MIGRATION = {
    "process": "shard0.0.shardd",
    "role": "donor",
    "ns": "shop.orders",
    "from": "shard0",
    "to": "shard1",
    "min": {"customer": 5000},
    "max": {"customer": MaxKey()},
    "state": "clone",
    "documents": 200_000,
    "documentsCloned": 1_234,
    "bytes": 200_000_000,
    "bytesCloned": 1_260_000,
    "backlog": 17,
}


def test_a_migration_in_one_line() -> None:
    assert migration_text(MIGRATION) == (
        "shard0.0.shardd moves shop.orders [5000, MaxKey) shard0 -> shard1: clone, 1,234 of 200,000 documents, "
        "1.3 of 200.0 MB, 17 changes to be transferred"
    )


def test_bounds_of_any_type_are_json() -> None:
    line = json_line({"migrations": [{"min": {"key": MinKey()}}]})
    assert json.loads(line) == {"migrations": [{"min": {"key": {"$minKey": 1}}}]}
