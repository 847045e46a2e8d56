"""Creating the donor's collection on the recipient, with its UUID, options and indexes, before the clone.

The rules, and what is refused, are those of MongoDB 6.0's ``MigrationDestinationManager``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.migration.recipient.collection_options import align_options
from shardwright.shardd.migration.recipient.donor_link import DonorLink
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_exactly, encode_document

logger = get_logger("shardd.migration.recipient")


@dataclass(frozen=True, slots=True)
class DonorCollection:
    """The collection as it is on the donor.

    Attributes:
        uuid: its UUID.
        options: its options, as ``listCollections`` shows them.
        id_index: the specification of the ``_id`` index.
        indexes: the specifications of the others.
    """

    uuid: UUID
    options: Mapping[str, Any]
    id_index: Mapping[str, Any] | None
    indexes: Sequence[Mapping[str, Any]]


async def describe_on_donor(link: DonorLink) -> DonorCollection:
    """Ask the donor for the collection.

    Raises:
        CommandError: NamespaceNotFound, it does not exist; InvalidUUID, its UUID is not that of the request; or the
            donor could not be asked.
    """
    request = link.request
    namespace = request.namespace
    listing = {"listCollections": 1, "filter": {"name": namespace.collection}}
    found = [decode_exactly(each) for each in await link.cursor_documents(namespace.db, listing)]
    if not found or "uuid" not in found[0]["info"]:
        raise CommandError(ErrorCode.NamespaceNotFound, f"donor shard has no collection {namespace}")
    entry = found[0]
    uuid = UUID(bytes=bytes(entry["info"]["uuid"]))
    if request.collection_uuid not in (None, uuid):
        raise CommandError(
            ErrorCode.InvalidUUID,
            f"the collection {namespace} of the donor has the UUID {uuid}, not {request.collection_uuid}",
        )
    specifications = await link.cursor_documents(namespace.db, {"listIndexes": namespace.collection})
    decoded = [decode_exactly(each) for each in specifications]
    indexes = [each for each in decoded if each["name"] != "_id_" and not each.get("clustered")]
    return DonorCollection(uuid, entry["options"], entry.get("idIndex"), indexes)


async def copy_collection(context: ShardContext, namespace: Namespace, donor: DonorCollection) -> None:
    """Create the collection and those of its indexes that are missing here, and align its options with the donor's.

    Raises:
        CommandError: InvalidUUID, another collection of that name exists; InvalidOptions, its options differ;
            CannotCreateCollection, an index is missing and the collection has documents; or an index could not be
            created.
    """
    mongod = context.mongod
    local = await local_collections.describe(mongod, namespace)
    if local is None:
        options = {name: value for name, value in donor.options.items() if name != "uuid"}
        await local_collections.create_with_uuid(mongod, namespace, donor.uuid, options, donor.id_index)
        context.namespace(str(namespace)).forget()
    else:
        await local_collections.create_with_uuid(mongod, namespace, donor.uuid, {}, None)  # checks the UUID alone
        state = context.namespace(str(namespace))
        if not state.is_known:
            await context.refresher.refresh_collection(state)
        owns_chunks = state.table is not None and state.table.chunk_count_of(state.shard) > 0
        await align_options(context, namespace, local, donor.options, owns_chunks=owns_chunks)
        if state.table is not None and not owns_chunks:
            await _drop_foreign_indexes(context, namespace, donor.indexes)
    present = await local_collections.list_indexes(mongod, namespace)
    missing = [each for each in donor.indexes if not any(_is_same(each, other) for other in present)]
    if missing and not await local_collections.is_empty(mongod, namespace):
        raise CommandError(
            ErrorCode.CannotCreateCollection,
            f"aborting, shard is missing {len(missing)} indexes and collection is not empty. "
            "Non-trivial index creation should be scheduled manually",
        )
    if "collation" in donor.options:
        # A specification without a collation means the simple one, but createIndexes would apply the collection's.
        missing = [{"collation": {"locale": "simple"}, **each} for each in missing]
    await local_collections.create_indexes(mongod, namespace, missing)


async def _drop_foreign_indexes(
    context: ShardContext, namespace: Namespace, wanted: Sequence[Mapping[str, Any]]
) -> None:
    """Drop the indexes that the donor does not have: they are out of date on a shard without chunks."""
    for each in await local_collections.list_indexes(context.mongod, namespace):
        if each["name"] == "_id_" or each.get("clustered") or any(_is_same(each, other) for other in wanted):
            continue
        logger.info("Dropping an index that the donor does not have", namespace=str(namespace), index=each["name"])
        drop = {"dropIndexes": namespace.collection, "index": each["name"], "writeConcern": MAJORITY}
        await local_collections.change(context.mongod, namespace, drop)


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two specifications describe the same index; the order of fields matters only in its key."""
    return dict(one) == dict(other) and encode_document(one["key"]) == encode_document(other["key"])
