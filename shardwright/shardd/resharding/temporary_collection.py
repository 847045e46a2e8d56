"""The collection in which a recipient assembles its documents, and what becomes of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bson.binary import Binary

from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.shard_key_index import has_supporting_index, index_specification
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.resharding.local_documents import PROGRESS
from shardwright.sharding.resharding.names import stash_namespace
from shardwright.sharding.resharding.participation import Participation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def create_temporary(context: ShardContext, participation: Participation) -> tuple[str, ...]:
    """Create the collection with the options and indexes that it has on a donor, and an index for the new key.

    mongod hides no indexes of a system collection, which this is, so hidden ones are hidden later.

    Returns:
        The names of those, for `hide_indexes`.

    Raises:
        CommandError: NamespaceNotFound, the donor does not have the collection; InvalidOptions, a unique index does not
            begin with the new key; an index cannot be created.
        BackendError: mongod does not answer.
    """
    namespace, temporary = participation.namespace, participation.temporary
    listing = {"listCollections": 1, "filter": {"name": namespace.collection}}
    donor = participation.donors[0]
    found = (await send_to_shard(context, donor, namespace.db, listing))["cursor"]["firstBatch"]
    if not found:
        raise CommandError(ErrorCode.NamespaceNotFound, f"donor shard has no collection {namespace}")
    options = {name: value for name, value in found[0]["options"].items() if name != "uuid"}
    reply = await send_to_shard(context, donor, namespace.db, {"listIndexes": namespace.collection})
    indexes = _with_key_index(participation, reply["cursor"]["firstBatch"], has_collation="collation" in options)
    mongod, id_index = context.mongod, found[0].get("idIndex")
    await local_collections.create_with_uuid(mongod, temporary, participation.id, options, id_index)
    await local_collections.create_indexes(mongod, temporary, [_visible(each) for each in indexes])
    return tuple(each["name"] for each in indexes if each.get("hidden"))


def _visible(index: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name != "hidden"}


def _with_key_index(
    participation: Participation, indexes: Sequence[dict[str, Any]], *, has_collation: bool
) -> list[dict[str, Any]]:
    wanted = [each for each in indexes if each["name"] != "_id_" and not each.get("clustered")]
    if has_collation:
        # A specification without a collation means the simple one, but createIndexes would apply the collection's.
        wanted = [{"collation": {"locale": "simple"}, **each} for each in wanted]
    if not has_supporting_index(participation.namespace, participation.key, indexes, unique=False):
        wanted.append(index_specification(participation.key, unique=False, has_default_collation=has_collation))
    return wanted


async def drop_source(context: ShardContext, participation: Participation) -> None:
    """Drop the former collection on a shard that has received nothing. May be repeated.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    present = await local_collections.describe(context.mongod, participation.namespace)
    if present is None or present.uuid != participation.id:
        await local_collections.drop(context.mongod, participation.namespace)


async def replace_source(context: ShardContext, participation: Participation) -> None:
    """Put the assembled collection in the place of the former one. May be repeated.

    Raises:
        CommandError: NamespaceNotFound, the assembled collection is missing; mongod refuses.
        BackendError: mongod does not answer.
    """
    namespace, temporary, mongod = participation.namespace, participation.temporary, context.mongod
    present = await local_collections.describe(mongod, namespace)
    if present is not None and present.uuid == participation.id:
        return
    assembled = await local_collections.describe(mongod, temporary)
    if assembled is None or assembled.uuid != participation.id:
        raise CommandError(ErrorCode.NamespaceNotFound, f"This shard has no collection {temporary}")
    replaced = Binary.from_uuid(present.uuid) if present is not None and present.uuid is not None else False
    rename = {
        "renameCollection": str(temporary),
        "to": str(namespace),
        "dropTarget": replaced,
        "collectionUUID": Binary.from_uuid(participation.id),
        "writeConcern": MAJORITY,
    }
    await mongod.command("admin", rename)


async def hide_indexes(context: ShardContext, participation: Participation, names: Iterable[str]) -> None:
    """Hide indexes of the collection that is in its place now, as they were before. May be repeated.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    for name in names:
        hide = {"collMod": participation.namespace.collection, "index": {"name": name, "hidden": True}}
        await local_collections.change(context.mongod, participation.namespace, {**hide, "writeConcern": MAJORITY})


async def remove_remains(context: ShardContext, participation: Participation) -> None:
    """Drop what only the operation needs: the temporary collection, if it is still there, stashes and progress.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    stashes = [stash_namespace(participation.source_uuid, donor) for donor in participation.donors]
    for namespace in (participation.temporary, *stashes):
        await local_collections.drop(context.mongod, namespace)
    progress = {"q": {"_id.reshardingUUID": Binary.from_uuid(participation.id)}, "limit": 0}
    await context.mongod.write("config", {"delete": PROGRESS, "deletes": [progress], "writeConcern": MAJORITY})
