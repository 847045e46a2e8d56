"""The documents with which a donor registers a migration before anything moves."""

from hashlib import sha256
from typing import Final
from uuid import uuid4

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument, new_session_id
from shardwright.shardd.migration.donor.plan import MovePlan
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.shardd.orphans.range_deletion_task import CLEAN_DELAYED, CLEAN_NOW, RangeDeletionTask

_NO_USER: Final = sha256(b"").digest()
"""The user part of the id of a session that belongs to no user."""


def new_coordinator(donor: str, plan: MovePlan) -> MigrationCoordinatorDocument:
    """The coordinator of a new migration, without a decision.

    Args:
        donor: id of this shard.
        plan: the move.
    """
    recipient = plan.request.recipient
    return MigrationCoordinatorDocument(
        id=uuid4(),
        session_id=new_session_id(donor, recipient),
        lsid={"id": Binary.from_uuid(uuid4()), "uid": _NO_USER},
        txn_number=0,
        namespace=str(plan.request.namespace),
        collection_uuid=plan.table.collection.uuid,
        donor=donor,
        recipient=recipient,
        range=plan.key_range,
        chunk_version=plan.chunk_version,
    )


async def new_range_deletion(
    mongod: LocalMongod, coordinator: MigrationCoordinatorDocument, request: MoveRangeRequest
) -> RangeDeletionTask:
    """The pending range deletion of the donor's documents, which becomes ready if the migration is committed.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    pong = await mongod.command("admin", {"ping": 1})
    return RangeDeletionTask(
        id=coordinator.id,
        namespace=coordinator.namespace,
        collection_uuid=coordinator.collection_uuid,
        donor=coordinator.donor,
        range=coordinator.range,
        pending=True,
        when=CLEAN_NOW if request.wait_for_delete else CLEAN_DELAYED,
        timestamp=pong["operationTime"],
    )
