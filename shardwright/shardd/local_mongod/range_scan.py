"""Reading a range of shard key values through an index, in mongod's own terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import list_indexes
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

OWN_CURSOR_COMMENT: Final = {"shardwright": "migration"}
"""The ``comment`` of cursors that migrations read with. One that a dead daemon has left behind keeps nobody waiting."""


@dataclass(frozen=True, slots=True)
class ShardKeyIndex:
    """An index that ranges of a shard key can be read through.

    Attributes:
        name: what to hint at; there may be several indexes on the same fields.
        key: its fields, of which the first are those of the shard key.
    """

    name: str
    key: Mapping[str, Any]

    @classmethod
    async def find(cls, mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern) -> "ShardKeyIndex":
        """The first index of a collection that supports the shard key.

        Raises:
            CommandError: IndexNotFound, there is none.
        """
        for index in await list_indexes(mongod, namespace):
            if pattern.is_supported_by_index(index):
                return cls(index["name"], index["key"])
        raise CommandError(ErrorCode.IndexNotFound, f"no index of {namespace} supports the shard key {pattern}")

    def scans(
        self, pattern: ShardKeyPattern, wanted: ChunkRange, from_key: bytes | None = None
    ) -> list[dict[str, Any]]:
        """Arguments of ``find``, up to two sets of them, that give the documents of a range in the order of the index.

        A key of nothing but MaxKey belongs to the last chunk, though it is not below that chunk's bound, and even a
        scan without an upper bound ends before it; so it takes a search of its own.

        Args:
            pattern: the shard key.
            wanted: the range.
            from_key: a shard key document, not below the range; what comes before it is left out.
        """
        # The index orders strings as the shard key does, which the collection's own collation may not.
        common = {"hint": self.name, "collation": {"locale": "simple"}}
        scans: list[dict[str, Any]] = []
        if from_key is None or pattern.key_bytes(from_key) < wanted.max_key:  # else mongod finds fault with the bounds
            scans.append({"min": self.bound(from_key or wanted.min), "max": self.bound(wanted.max), **common})
        if wanted.max_key == pattern.global_max_bytes() and pattern.hashed_field is None:
            scans.append({"filter": {each.name.decode(): {"$eq": bson.MaxKey()} for each in pattern.fields}, **common})
        return scans

    def bound(self, bound: bytes) -> Mapping[str, Any]:
        """A bound of the shard key made one on all fields of the index: the first place with that shard key."""
        given = len(list(rawbson.spans(bound)))
        rest = {name: _first(direction) for name, direction in list(self.key.items())[given:]}
        return rawbson.raw_document(rawbson.append(bound, rawbson.encode_elements(rest)) if rest else bound)


def _first(direction: object) -> object:
    """What comes first in an index field of this direction."""
    is_descending = isinstance(direction, int | float) and direction < 0
    return bson.MaxKey() if is_descending else bson.MinKey()
