"""A cluster in memory whose shape was recorded on a real one, see `recording`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final

import bson
from bson import json_util

from shardwright.sharding.balancing.cluster_state import Policy, ShardState
from shardwright.sharding.catalog.documents import TagEntry
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document
from tests.sharding.balancing.simulation import SimulatedChunk, World

SHAPES: Final = {path.stem: path for path in sorted((Path(__file__).parent / "shapes").glob("*.json"))}
"""The recorded shapes by name."""

Document = dict[str, Any]


class RecordedWorld(World):
    """A world whose keys number the pieces of a recording, with the recorded bounds.

    Args:
        head: the first line of the recording.
        recorded: its chunks.
        policy: the quantity to even out.
    """

    def __init__(self, head: Mapping[str, Any], recorded: Sequence[Document], policy: Policy) -> None:
        self._pattern = ShardKeyPattern.from_mapping(head["collection"]["key"])
        self._bounds = [*_bounds(self._pattern, recorded), encode_document(recorded[-1]["max"])]
        self._keys = {self._pattern.key_bytes(bound): number for number, bound in enumerate(self._bounds)}
        starts = accumulate((len(chunk["bytes"]) for chunk in recorded), initial=0)
        chunks = [
            SimulatedChunk(low, low + len(chunk["bytes"]), chunk["shard"], bool(chunk.get("jumbo")))
            for low, chunk in zip(starts, recorded, strict=False)
        ]
        super().__init__(
            [
                ShardState(each["_id"], frozenset(each.get("tags", ())), each.get("draining", False))
                for each in head["shards"]
            ],
            chunks,
            list(chain.from_iterable(chunk["bytes"] for chunk in recorded)),
            [self._zone(tag) for tag in head["tags"]],
            policy,
            head["collection"]["maxChunkSizeBytes"],
        )

    @property
    def pattern(self) -> ShardKeyPattern:
        """The shard key."""
        return self._pattern

    def bound(self, key: int) -> bytes:
        """The recorded bound at which a piece begins."""
        return self._bounds[key]

    def key_at(self, bound: bytes) -> int:
        """The piece that begins at a bound."""
        return self._keys[self._pattern.key_bytes(bound)]

    def _zone(self, tag: Mapping[str, Any]) -> tuple[int, int, str]:
        low, high, zone = TagEntry.from_document({"_id": {}, **tag}).zone_range(self._pattern)
        return self.key_at(low), self.key_at(high), zone


def _bounds(pattern: ShardKeyPattern, recorded: Sequence[Document]) -> Iterator[bytes]:
    names = list(bson.decode(pattern.document))
    for chunk in recorded:
        yield encode_document(chunk["min"])
        for cut in chunk["cuts"]:
            yield encode_document(dict(zip(names, cut, strict=True)))


@lru_cache
def _read(name: str) -> tuple[Document, list[Document]]:
    head, *chunks = map(json_util.loads, SHAPES[name].read_text().splitlines())
    return head, chunks


def recorded_world(name: str, policy: Policy) -> RecordedWorld:
    """A new world of a recorded shape."""
    return RecordedWorld(*_read(name), policy)
