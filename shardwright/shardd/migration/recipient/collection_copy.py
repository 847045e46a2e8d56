"""Creating the donor's collection on the recipient, with its UUID, options and indexes, before the clone.

The rules and refusals come from MongoDB 6.0's ``MigrationDestinationManager``.

If the recipient already has the collection, its options are aligned with the donor's. A shard that owns no chunks of a
collection may have missed changes to its options. A shard that owns chunks has not: there, different options are a sign
of a ``collMod`` that failed halfway, and only the user can decide which ones are right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.shardd.local_mongod.local_collections import LocalCollection, change
from shardwright.shardd.local_mongod.option_values import MODIFIABLE, different_options, option_value
from shardwright.shardd.migration.recipient.donor_link import DonorLink
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_exactly, encode_document

logger = get_logger("shardd.migration.recipient")


async def align_options(
    context: ShardContext, namespace: Namespace, local: LocalCollection, wanted: Mapping[str, Any], *, owns_chunks: bool
) -> None:
    """Change the options of a local collection to those on the donor.

    Args:
        wanted: the options on the donor.
        owns_chunks: whether this shard owns chunks of it.

    Raises:
        CommandError: InvalidOptions, they differ, and cannot or must not be changed.
    """
    different = different_options(local.options, wanted)
    if not different:
        return
    if owns_chunks or not MODIFIABLE.keys() >= set(different):
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"the options {', '.join(different)} of the collection {namespace} are not those that it has on the donor",
        )
    logger.info("Applying the donor's collection options", namespace=str(namespace), options=different)
    modify = {"collMod": namespace.collection, **{name: option_value(name, wanted) for name in different}}
    await change(context.mongod, namespace, {**modify, "writeConcern": MAJORITY})


@dataclass(frozen=True, slots=True)
class DonorCollection:
    """The collection on the donor.

    Attributes:
        options: its options, as ``listCollections`` shows them.
        id_index: the specification of the ``_id`` index.
        indexes: the specifications of the others.
    """

    uuid: UUID
    options: Mapping[str, Any]
    id_index: Mapping[str, Any] | None
    indexes: Sequence[Mapping[str, Any]]


async def describe_on_donor(link: DonorLink) -> DonorCollection:
    """Query the donor for the collection.

    Raises NamespaceNotFound if it does not exist, and InvalidUUID if its UUID is not the request's.
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
    """Create the collection and its missing indexes, and align its options with the donor's.

    Raises InvalidUUID if another collection of that name exists, InvalidOptions if its options differ, and
    CannotCreateCollection if an index is missing and the collection has documents.
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
    await local_collections.create_indexes(mongod, namespace, local_collections.specifications(missing, donor.options))


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
