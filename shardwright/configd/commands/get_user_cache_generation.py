"""What a mongos asks to learn that users or roles have changed, and forgets those that it has cached.

Our routers do not ask: they read each user again in time. A mongod answers only if it is a config server itself, and by
a number of its own that changes with each write. Here it is a digest of what is stored, which members agree on, so that
an election is no reason to read all users again.
"""

from hashlib import sha256
from typing import Any, Final

import bson
from bson.objectid import ObjectId

from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.wire.transport.cursor import DecodedCursor

_COLLECTIONS: Final = ("system.users", "system.roles")
_OBJECT_ID_BYTES: Final = 12


@config_command("_getUserCacheGeneration", write_concern=WriteConcernRule.UNSUPPORTED)
async def get_user_cache_generation(operation: Operation) -> dict[str, Any]:
    """An id that is another one after each change to a user or a role."""
    digest = sha256()
    for collection in _COLLECTIONS:
        question = {"find": collection, "sort": {"_id": 1}, "readConcern": {"level": "majority"}}
        cursor = DecodedCursor(operation.primary.catalog.mongod.command, "admin", question)
        for document in await cursor.all_documents():
            digest.update(bson.encode(document))
        digest.update(b"\0")  # a document would begin with its length
    return {"cacheGeneration": ObjectId(digest.digest()[:_OBJECT_ID_BYTES])}
