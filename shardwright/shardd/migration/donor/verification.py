"""Comparing the donor's and the recipient's documents of a range, in the critical section before the commit."""

import trio
from bson.binary import Binary

from shardwright.shardd.cluster.network import as_command_error
from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.plan import MovePlan
from shardwright.shardd.migration.source.digest import RangeDigest, digest
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import raw_document

logger = get_logger("shardd.migration.donor")


async def verify_range(context: ShardContext, coordinator: MigrationCoordinatorDocument, plan: MovePlan) -> None:
    """Compute the range's digest on both sides concurrently, and compare them.

    Raises:
        CommandError: DataCorruptionDetected, the digests differ; or a digest could not be computed.
    """
    collection = plan.table.collection
    digests: dict[str, RangeDigest] = {}
    errors: list[CommandError] = []

    async def ask_recipient() -> None:
        command = {
            "_shardsvrDigestRange": coordinator.namespace,
            "collectionUUID": Binary.from_uuid(collection.uuid),
            "shardKeyPattern": raw_document(collection.key_pattern.document),
            **plan.range.to_document(),
        }
        try:
            reply = await send_to_shard(context, coordinator.recipient, "admin", command)
            digests["recipient"] = RangeDigest.from_document(reply)
        except CommandError as error:
            errors.append(error)

    async def read_own() -> None:
        try:
            digests["donor"] = await digest(
                context.mongod, collection.namespace, collection.uuid, collection.key_pattern, plan.range
            )
        except (CommandError, BackendError) as error:
            errors.append(as_command_error(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_recipient)
        nursery.start_soon(read_own)
    if errors:
        raise errors[0]
    own, its = digests["donor"], digests["recipient"]
    if own != its:
        raise CommandError(
            ErrorCode.DataCorruptionDetected,
            f"the documents of {coordinator.namespace} {plan.range} differ after their migration: the donor has "
            f"{own.documents} documents, the recipient {its.documents}; nothing has been committed",
        )
    logger.info("Verified a migration", namespace=coordinator.namespace, documents=own.documents)
