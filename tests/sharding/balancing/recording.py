"""Recording the shape of a collection in a running cluster, so that the policy can be tried on it without the cluster.

``python -m tests.sharding.balancing.recording URI NAMESPACE ABOUT > shapes/NAME.json`` works with any router, also with
MongoDB's own. It reads all documents of the collection.

The first line of a recording has what the policy knows: documents of ``config.settings``, ``config.shards``,
``config.collections`` and ``config.tags``, and why the shape is of interest. Each further line is a chunk: its document
without versions, ``cuts``, the keys at which it can be divided, and ``bytes``, the sizes of the pieces between them.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from shardwright.sharding.balancing.cluster_state import ZoneMap
from shardwright.sharding.catalog.documents import TagEntry
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document
from tests.integration.sharded import CATALOG_OPTIONS, Document

PIECES: Final = 4
"""A piece is about this fraction of the chunk size."""

_RAW: Final[CodecOptions[Any]] = CodecOptions(RawBSONDocument)
_SIZE: Final = "sizeOfTheDocument"
_COLLECTION_FIELDS: Final = ("_id", "key", "maxChunkSizeBytes", "noBalance", "permitMigrations")
_CHUNK_FIELDS: Final = ("min", "max", "shard", "jumbo")

Sized = tuple[bytes, bytes, int]
"""A key in the form in which keys are ordered, the key, and the size of its documents."""


def record(client: MongoClient[Document], namespace: str, about: str) -> Iterator[str]:
    """The lines of a recording."""
    config = client.get_database("config", CATALOG_OPTIONS)
    entry = config["collections"].find_one({"_id": namespace})
    assert entry is not None, f"{namespace} is not sharded"
    pattern = ShardKeyPattern.from_mapping(entry["key"])
    tags = list(config.tags.find({"ns": namespace}, {"_id": 0}).sort("min", 1))
    head = {
        "about": about,
        "settings": list(config.settings.find({"_id": {"$in": ["chunksize"]}})),
        "shards": list(config.shards.find({}, {"_id": 1, "tags": 1, "draining": 1}).sort("_id", 1)),
        "collection": {name: entry[name] for name in _COLLECTION_FIELDS if name in entry},
        "tags": tags,
    }
    yield json_util.dumps(head, json_options=json_util.RELAXED_JSON_OPTIONS)
    zones = ZoneMap(pattern, [TagEntry.from_document({"_id": {}, **tag}).zone_range(pattern) for tag in tags])
    piece_bytes = entry.get("maxChunkSizeBytes", 128 << 20) // PIECES
    sizes = _sizes_by_key(client, namespace, pattern)
    for chunk in config.chunks.find({"uuid": entry["uuid"]}).sort("min", 1):
        range_ = ChunkRange.of(pattern, encode_document(chunk["min"]), encode_document(chunk["max"]))
        inside = [each for each in sizes if range_.contains_key(each[0])]
        bounds = [(pattern.key_bytes(bound), bound, 0) for bound in zones.bounds_inside(range_)]
        cuts, pieces = _pieces(sorted([*inside, *bounds]), {each[0] for each in bounds}, piece_bytes)
        kept: Document = {name: chunk[name] for name in _CHUNK_FIELDS if name in chunk}
        document: Document = {**kept, "cuts": [list(bson.decode(cut).values()) for cut in cuts], "bytes": pieces}
        yield json_util.dumps(document, json_options=json_util.RELAXED_JSON_OPTIONS)


def _sizes_by_key(client: MongoClient[Document], namespace: str, pattern: ShardKeyPattern) -> list[Sized]:
    db, _, name = namespace.partition(".")
    fields: dict[str, Any] = {field.name.decode(): 1 for field in pattern.fields}
    documents: Iterable[Any] = client.get_database(db, _RAW)[name].aggregate(
        [{"$project": {**fields, _SIZE: {"$bsonSize": "$$ROOT"}}}]
    )
    keys = [(pattern.extract_from_document(bytes(each.raw)), int(each[_SIZE])) for each in documents]
    ordered = sorted((pattern.key_bytes(key), key, size) for key, size in keys)
    return [
        (order, key, sum(each[2] for each in same))
        for (order, key), same in groupby(ordered, lambda each: (each[0], each[1]))
    ]


def _pieces(keys: Sequence[Sized], obligatory: set[bytes], piece_bytes: int) -> tuple[list[bytes], list[int]]:
    """Cuts between keys, always at some of them, and the sizes of the pieces: one more than there are cuts."""
    cuts: dict[bytes, bytes] = {}
    pieces = [0]
    for order, key, size in keys:
        is_due = pieces[-1] >= piece_bytes or order in obligatory
        if is_due and order not in cuts and (order in obligatory or cuts or pieces[0]):
            cuts[order] = key
            pieces.append(0)
        pieces[-1] += size
    return list(cuts.values()), pieces


if __name__ == "__main__":
    with MongoClient[Document](sys.argv[1]) as connected:
        print("\n".join(record(connected, sys.argv[2], sys.argv[3])))
