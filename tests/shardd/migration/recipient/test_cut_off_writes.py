"""An aborted attempt leaves nothing behind, although mongod may still be busy with one of its writes."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.migration.recipient.receiving import Receiving, documents

PATIENCE_SECONDS = 1.0
"""An abort that does not wait for the write is over long before that."""


@pytest.mark.parametrize(
    ("hang", "collection"),
    [("hangDuringBatchUpdate", "migrationCheckpoints"), ("hangDuringBatchInsert", "rangeDeletions")],
)
def test_a_write_that_mongod_has_not_finished(receiving: Receiving, hang: str, collection: str) -> None:
    receiving.donor.documents = documents(10)
    nss = f"config.{collection}"
    with receiving.mongod() as mongod, ThreadPoolExecutor(1) as pool:
        with fail_point(mongod, hang, nss=nss) as held:
            receiving.start()
            held.wait_entered()
            ending = pool.submit(receiving.end)
            wait([ending], timeout=PATIENCE_SECONDS)
        ending.result()
        busy = {"ns": nss, "op": {"$in": ["insert", "update"]}}
        eventually(
            lambda: not list(mongod.admin.aggregate([{"$currentOp": {}}, {"$match": busy}])), what="all is written"
        )
    assert receiving.checkpoint() is None
    receiving.wait(receiving.range_deletion, lambda task: task is None)
