"""The namespace of a request to the router, for the log and ``$currentOp``."""

from typing import Final

from shardwright.daemon.namespaces import namespace_of
from shardwright.wire.request import Request

_NAMED_IN_FULL: Final = frozenset(
    {
        *("dataSize", "datasize", "enableSharding", "enablesharding", "flushRouterConfig", "flushrouterconfig"),
        *("getShardVersion", "getshardversion", "mergeChunks", "moveChunk", "movechunk", "moveRange"),
        *("movePrimary", "moveprimary"),
        *("renameCollection", "setAllowMigrations", "shardCollection", "shardcollection", "split"),
        *("splitVector", "updateZoneKeyRange"),
    }
)
"""Commands whose argument is ``db.collection``, or a database, independently of the command's database."""

_NAME_SHARDS: Final = frozenset({"addShard", "addShardToZone", "addshard", "removeShardFromZone"})


def request_namespace(request: Request) -> str:
    """The namespace of a request; only the database if it names no collection."""
    return namespace_of(request, in_full=_NAMED_IN_FULL, without=_NAME_SHARDS)
