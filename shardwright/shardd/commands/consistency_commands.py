"""The shards' part of ``checkMetadataConsistency``."""

from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.consistency.database_check import check_database
from shardwright.shardd.consistency.local_check import ExpectedCollection, LocalCheck
from shardwright.wire.arguments import Arguments
from shardwright.wire.rawbson import decode_document, is_string
from shardwright.wire.request import Request


@command("_shardsvrCheckMetadataConsistency", is_ddl=True)
async def check_metadata_consistency(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Compare the catalog's entries of a database, or one collection of it, with each other and with all shards."""
    indexes = Arguments.of(request).boolean(b"checkIndexes", False)
    found = await check_database(shard.context, request.db, _collection(request), indexes=indexes)
    return {"inconsistencies": found}


@command("_shardsvrCheckMetadataConsistencyParticipant")
async def check_metadata_consistency_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Compare this shard's collections with the catalog."""
    primary_shard = Arguments.of(request).string(b"primaryShardId")
    documents: list[dict[str, Any]] = [decode_document(each) for each in request.documents(b"collections")]
    check = LocalCheck(shard.context, request.db)
    await check.run([ExpectedCollection.from_document(each) for each in documents], _collection(request), primary_shard)
    return {"inconsistencies": check.found, "indexes": check.indexes, "options": check.options}


def _collection(request: Request) -> str:
    """The only collection to check; empty for all."""
    value = request.get(request.name.encode())
    return value if is_string(value) else ""
