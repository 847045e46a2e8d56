"""Placements of collections, read from the catalog through a router: in full, or as pieces refined where needed.

Many predictions about a collection use its full routing table. For one prediction the bands of the chunk map suffice.
The prediction records the bands with several shards. Their chunks are then read, and the prediction is repeated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from shardwright.console.chunk_reads import bands, chunks_between, key_bytes
from shardwright.console.collections import UnknownCollection, collection_entry, shard_names
from shardwright.console.prediction import NotPredictable, Prediction, View, Where, predict
from shardwright.console.reader import Document, Reader
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.chunks import read_placements
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, RoutingTableBuilder, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.targets import CollectionPlacement
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request

_SECONDS: Final = 5.0
_REFINED_MAX: Final = 4
_PAGES_MAX: Final = 5
"""Bands whose chunks are read for one prediction, and pages of chunks of each. Others count with all their shards."""

_BUCKETS: Final = "system.buckets."
_CONFIG: Final = "config"
_DATABASES_OF_SERVERS: Final = frozenset({"admin", "config"})


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive chunks.

    Attributes:
        low: the first key, encoded.
        high: the key after the last, encoded.
        min, max: the same as documents.
    """

    low: bytes
    high: bytes
    min: Document
    max: Document
    shards: frozenset[str]
    chunks: int


class Pieces:
    """The placement of a collection as pieces that tile the key space.

    Args:
        pieces: in the order of the key.

    Attributes:
        undecided: positions of pieces with several shards that a prediction depended on.
        touched: positions of pieces that a prediction depended on.
    """

    def __init__(self, collection: ShardedCollection, pieces: Sequence[Piece]) -> None:
        self.collection = collection
        self.pieces = tuple(pieces)
        self.undecided: set[int] = set()
        self.touched: set[int] = set()
        self._lows = [piece.low for piece in self.pieces]
        self._shards = frozenset[str]().union(*(piece.shards for piece in self.pieces))

    @property
    def namespace(self) -> Namespace:
        """The name of the collection."""
        return self.collection.namespace

    @property
    def key_pattern(self) -> ShardKeyPattern:
        """The shard key."""
        return self.collection.key_pattern

    @property
    def shards(self) -> Set[str]:
        """The shards with at least one chunk."""
        return self._shards

    def shard_for_key(self, key: bytes) -> str:
        """Return the shard that owns a key; one of several if the piece is undecided."""
        at = max(bisect_right(self._lows, key) - 1, 0)
        return min(self._used(at))

    def shards_for_range(self, low: bytes, high: bytes) -> Set[str]:
        """Return the shards that own a part of ``[low, high)``, or more if pieces are undecided."""
        first = max(bisect_right(self._lows, low) - 1, 0)
        return frozenset[str]().union(*(self._used(at) for at in range(first, bisect_left(self._lows, high))))

    def _used(self, at: int) -> frozenset[str]:
        self.touched.add(at)
        piece = self.pieces[at]
        if len(piece.shards) > 1:
            self.undecided.add(at)
        return piece.shards


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction with its placement.

    Attributes:
        entry: the catalog's document of the collection; None if it is not sharded.
        pieces: the placement; None if it is not sharded.
    """

    prediction: Prediction
    entry: Document | None = None
    pieces: Pieces | None = None


async def predicted(reader: Reader, request: Request) -> Predicted:
    """Predict the shards of one operation.

    Raises:
        NotPredictable: it is not routed by a shard key, or the catalog is not valid.
    """
    named = await _named(reader, request.db, _collection(request))
    if named.entry is None:
        return Predicted(predict(request, named.where(None)))
    collection = _sharded_collection(named.entry)
    shards = await shard_names(reader)
    pieces = [_piece(band, band["shards"], band["chunks"]) for band in await bands(reader, named.entry["uuid"], shards)]
    placement = Pieces(collection, pieces)
    found = predict(request, named.where(placement))
    wanted = placement.touched if len(placement.touched) <= _REFINED_MAX else placement.undecided
    if wanted and len(wanted) <= _REFINED_MAX and any(pieces[at].chunks > 1 for at in wanted):
        for at in sorted(wanted, reverse=True):
            pieces[at : at + 1] = await _refined(reader, named.entry["uuid"], pieces[at])
        placement = Pieces(collection, pieces)
        found = predict(request, named.where(placement))
    return Predicted(found, named.entry, placement)


class Tables:
    """The full routing tables of collections with many operations, each read once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[tuple[str, str], Where] = {}
        self.entries: dict[tuple[str, str], Document | None] = {}

    async def where(self, db: str, collection: str) -> Where:
        """Return the placement of a namespace.

        Raises:
            NotPredictable: the catalog is not valid.
        """
        key = db, collection
        if key not in self._known:
            named = await _named(self._reader, db, collection)
            table = None if named.entry is None else await _table(self._reader, named.entry)
            self.entries[key] = named.entry
            self._known[key] = named.where(table)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Named:
    """The meaning of a namespace: the catalog's entry, and a view's definition."""

    primary: str
    cluster: frozenset[str]
    entry: Document | None
    view: View | None

    def where(self, placement: CollectionPlacement | None) -> Where:
        return Where(self.primary, self.cluster, placement, self.view)


async def _named(reader: Reader, db: str, collection: str) -> _Named:
    namespace = f"{db}.{collection}"
    cluster = frozenset(await shard_names(reader))
    databases = await reader.find("config", "databases", {"_id": db}, limit=1)
    # Routers read the admin and config databases from the config servers. A missing database has no primary shard yet.
    fallback = _CONFIG if db in _DATABASES_OF_SERVERS else min(cluster, default="")
    primary = databases[0]["primary"] if databases else fallback
    entry = await _entry(reader, namespace)
    view = None
    if entry is None and databases:
        view = await _view(reader, db, collection)
        if view is not None:
            entry = await _entry(reader, f"{db}.{view.on}")
    return _Named(primary, cluster, entry, view)


async def _entry(reader: Reader, namespace: str) -> Document | None:
    try:
        return await collection_entry(reader, namespace)
    except UnknownCollection:
        return None


async def _view(reader: Reader, db: str, collection: str) -> View | None:
    """Return the definition of a view, resolved through the views that it reads."""

    async def read() -> Document | None:
        reply = await reader.command({"listCollections": 1, "filter": {"name": collection}}, db)
        return next(iter(reply["cursor"]["firstBatch"]), None)

    found = await reader.kept(("listed", db, collection), _SECONDS, read)
    if found is None or found["type"] == "collection":
        return None
    options = found["options"]
    if found["type"] == "timeseries":
        fields = options["timeseries"]
        unpack = {name: fields[name] for name in ("timeField", "metaField", "bucketMaxSpanSeconds") if name in fields}
        return View(f"{_BUCKETS}{collection}", [encode_document({"$_internalUnpackBucket": unpack})])
    pipeline = [encode_document(stage) for stage in options["pipeline"]]
    below = await _view(reader, db, options["viewOn"])
    return View(options["viewOn"], pipeline) if below is None else View(below.on, [*below.pipeline, *pipeline])


def _collection(request: Request) -> str:
    try:
        return request.collection
    except CommandError as error:
        raise NotPredictable(error.message) from error


def _sharded_collection(entry: Document) -> ShardedCollection:
    try:
        return CollectionEntry.from_document(entry).sharded_collection()
    except CommandError as error:
        raise NotPredictable(f"the catalog's entry of {entry['_id']} cannot be read: {error.message}") from error


def _piece(bounds: Document, shards: Sequence[str] | Any, chunks: int) -> Piece:  # noqa: ANN401 - names, or a mapping
    low, high = bounds["min"], bounds["max"]
    return Piece(key_bytes(low), key_bytes(high), low, high, frozenset(shards), chunks)


async def _refined(reader: Reader, uuid: object, piece: Piece) -> list[Piece]:
    """Return the chunks of a piece; the rest of it in one piece if there are very many."""
    found: list[Piece] = []
    low = piece.min
    for _ in range(_PAGES_MAX):
        listed, has_more = await chunks_between(reader, uuid, low, piece.max)
        found += [_piece(each, (each["shard"],), 1) for each in listed]
        if not has_more:
            # A chunk may have moved or been split between the two reads; then the band stays as it was.
            return found or [piece]
        low = listed[-1]["max"]
    rest = piece.chunks - len(found)
    return [*found, Piece(key_bytes(low), piece.high, low, piece.max, piece.shards, max(rest, 1))]


async def _table(reader: Reader, entry: Document) -> RoutingTable:
    builder = RoutingTableBuilder(_sharded_collection(entry))
    async for batch in reader.raw_batches("config", "chunks", {"uuid": entry["uuid"]}, sort=[("min", 1)]):
        builder.add(read_placements(batch))
    try:
        return builder.finish()
    except CommandError as error:
        raise NotPredictable(f"the chunks of {entry['_id']} cannot be read: {error.message}") from error
