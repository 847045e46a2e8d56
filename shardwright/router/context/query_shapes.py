"""Counts of operations by shape: command, collection and normalised arguments (see `daemon.query_shape`).

A bounded number of shapes is kept. When another one needs room, the least used ones are removed, and their counts are
added to a common sum. Use is weighted by age, so that shapes of the past make room.

An operation must not pay for its normalisation. A passage holds the counts of its shape, and only increments numbers.
On the ordinary path the counts are found by the arguments' bytes, compared at once with the free ones masked out, as
passages are. Only new arguments are normalised.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from time import time
from typing import Any, Final

from bson.int64 import Int64

from shardwright.daemon.command_table import namespace_of
from shardwright.daemon.operation_metrics import BUCKET_BOUNDS_SECONDS, Histogram
from shardwright.daemon.query_shape import (
    LITERAL,
    free_of_shape,
    query_hash,
    shape_of_arguments,
    shaping_arguments,
    shown_shape,
)
from shardwright.router.context.parameters import Parameters
from shardwright.wire.errors import CommandError
from shardwright.wire.passages import Range
from shardwright.wire.rawbson import STRING, InvalidBSONError
from shardwright.wire.request import Request

COUNTED: Final = frozenset(
    {"aggregate", "count", "delete", "distinct", "find", "findAndModify", "getMore", "insert", "mapReduce", "update"}
)
"""The commands that are counted by shape."""

_INTERNAL: Final = frozenset({"admin", "config", "local"})
"""Databases that are not counted, as in MongoDB."""

_NAME_BYTES_MAX: Final = 300
"""Longest collection name that is counted; none of a valid one is longer."""

_ARGUMENT_BYTES_MAX: Final = 8_192
"""Longer arguments are not normalised: their shape is the command alone."""

_SHAPE_CHARACTERS_MAX: Final = 2_000
"""Longer shapes are not shown; their hash remains. All shapes of a router must fit into one document."""

_LAYOUT_BYTES_MAX: Final = 2_048
_LAYOUTS_PER_KEY_MAX: Final = 16
_LAYOUTS_MAX: Final = 4_096
"""Limits of the layouts. They are dropped beyond them, to bound their memory and the time to compare them."""

_weight_of = attrgetter("weight")

_REMEMBERED: Final = 0.9
"""The part of a weight that is left when shapes make room once more."""

_EVICTED_FRACTION: Final = 5
"""One of so many shapes makes room at once, so that sorting them is rare."""


class OperationCounts(Histogram):
    """Counts of operations, of one shape or of all shapes that had to make room.

    The numbers of a passage's operation follow from its duration: it succeeded on one shard.

    Attributes:
        errors: operations that failed.
        unsent: operations that no shard received: they failed, or returned documents that the router held.
        scattered: operations that several shards received.
        further_shards: shards of scattered operations beyond the first one.
        reply_bytes: bytes of replies, without errors.
        documents: documents in the batches of cursors.
    """

    __slots__ = ("documents", "errors", "further_shards", "reply_bytes", "scattered", "unsent")

    def __init__(self) -> None:
        super().__init__()
        self.errors = self.unsent = self.scattered = self.further_shards = self.reply_bytes = self.documents = 0

    @property
    def count(self) -> int:
        """The number of operations."""
        return sum(self.buckets)

    def add(self, other: "OperationCounts") -> None:
        """Add other counts."""
        self.add_durations(other)
        for name in OperationCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def metrics(self) -> dict[str, Any]:
        """Return the numbers as a document: sums alone, so that processes can be added up."""
        count = self.count
        return {
            "execCount": Int64(count),
            "errorCount": Int64(self.errors),
            "targetedCount": Int64(count - self.unsent - self.scattered),
            "scatteredCount": Int64(self.scattered),
            "shardsTargeted": {"sum": Int64(count - self.unsent + self.further_shards)},
            "totalExecMicros": {"sum": Int64(round(self.seconds * 1e6))},
            "bytesReturned": {"sum": Int64(self.reply_bytes)},
            "docsReturned": {"sum": Int64(self.documents)},
            "histogram": [
                {"micros": Int64(round(bound * 1e6)), "count": Int64(number)}
                for bound, number in zip((0.0, *BUCKET_BOUNDS_SECONDS), self.buckets, strict=True)
            ],
        }


class ShapeCounts(OperationCounts):
    """Counts of operations of one shape.

    Attributes:
        is_kept: whether the register has it; otherwise its numbers are in the common sum.
        first_seen: the time of the first operation, in seconds since 1970.
        weight: its recent use, for the choice of shapes that make room.
    """

    __slots__ = ("_weighed", "first_seen", "is_kept", "key", "shown", "weight")

    def __init__(self, key: tuple[str, str], command: str, shape: Mapping[str, Any]) -> None:
        super().__init__()
        db, _, collection = key[0].partition(".")
        shown = shown_shape(shape, _SHAPE_CHARACTERS_MAX)
        arguments = {} if shown is None else {name: each for name, each in shown.items() if name != command}
        self.key = key
        self.shown = {"cmdNs": {"db": db, "coll": collection}, "command": command, **arguments}
        self.is_kept = True
        self.first_seen = time()
        self.weight = 0.0
        self._weighed = 0

    def weigh(self) -> None:
        """Update the weight: most of the last one, and the operations since then."""
        count = self.count
        self.weight = self.weight * _REMEMBERED + count - self._weighed
        self._weighed = count

    def restart(self) -> None:
        """Begin to count again, after the numbers were added to the common sum."""
        OperationCounts.__init__(self)
        self.is_kept = True
        self.first_seen = time()
        self.weight, self._weighed = 0.0, 0

    def document(self) -> dict[str, Any]:
        """Return the document for ``$queryStats``."""
        first_seen = datetime.fromtimestamp(self.first_seen, UTC).replace(tzinfo=None)  # as BSON is decoded
        metrics = {**self.metrics(), "firstSeenTimestamp": first_seen}
        return {"key": {"queryShape": self.shown}, "queryShapeHash": self.key[1], "metrics": metrics}


class _Layout:
    """Arguments of the same shape that differ in free bytes."""

    __slots__ = ("counts", "mask", "masked")

    def __init__(self, arguments: bytes, free: Iterable[Range], counts: ShapeCounts) -> None:
        decides = bytearray(b"\xff" * len(arguments))
        for start, end in free:
            decides[start:end] = bytes(end - start)
        self.mask = int.from_bytes(decides, "little")
        self.masked = int.from_bytes(arguments, "little") & self.mask
        self.counts = counts


def _normalized(command: str, arguments: bytes) -> tuple[dict[str, Any], list[Range] | None]:
    """Return the shape of arguments, and their free bytes if they may have a layout."""
    try:
        if 0 < len(arguments) <= _ARGUMENT_BYTES_MAX:
            has_layout = len(arguments) <= _LAYOUT_BYTES_MAX
            free = free_of_shape(command, arguments) if has_layout else None
            return shape_of_arguments(command, arguments), free
    except InvalidBSONError:
        return {command: LITERAL}, None  # the command fails elsewhere
    return {command: LITERAL}, None


class QueryShapes:
    """The register of shapes of one process. The parameter ``queryStatsShapesMax`` is its size; 0 turns it off."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._kept: dict[tuple[str, str], ShapeCounts] = {}
        self._layouts: dict[tuple[str, str, bytes, int], list[_Layout]] = {}
        self._layout_count = 0
        self._others = OperationCounts()
        self._evicted = 0

    def observe(
        self,
        request: Request,
        seconds: float,
        targeted: tuple[str, ...],
        reply_bytes: int,
        documents: int,
        *,
        is_error: bool,
    ) -> None:
        """Count an operation of the ordinary path.

        Args:
            request: the client's request; its command is one of `COUNTED`.
            targeted: the shards that received it.
            documents: the number of documents in its reply.
        """
        counts = self.of(request)
        if counts is None:
            return
        counts.observe(seconds)
        counts.reply_bytes += reply_bytes
        counts.documents += documents
        if is_error:
            counts.errors += 1
        if len(targeted) != 1:
            if not targeted:
                counts.unsent += 1
            elif (further := len(set(targeted)) - 1) > 0:
                counts.scattered += 1
                counts.further_shards += further

    def of(self, request: Request) -> ShapeCounts | None:
        """Return the counts of a request's shape; None if it is not counted."""
        if not self._parameters.query_shapes_max or request.db in _INTERNAL:
            return None
        name, fields = request.name, request.fields
        span = fields.get(b"collection") if name == "getMore" else next(iter(fields.values()))
        collection = b"" if span is None or span[0] != STRING else request.body[span[2] : span[3]]
        try:
            arguments = shaping_arguments(request)
        except (CommandError, InvalidBSONError):
            arguments = b""
        key = (name, request.db, collection, len(arguments))
        known = self._layouts.get(key)
        if known is not None:
            number = int.from_bytes(arguments, "little")
            for layout in known:
                if number & layout.mask == layout.masked:
                    counts = layout.counts
                    return counts if counts.is_kept else self.kept_again(counts)
        return None if len(collection) > _NAME_BYTES_MAX else self._find(request, key, arguments)

    def kept_again(self, counts: ShapeCounts) -> ShapeCounts:
        """Keep counts that had to make room, because an operation has the shape again; return those to use."""
        kept = self._kept.get(counts.key)
        if kept is None and not self._parameters.query_shapes_max:
            return counts
        if kept is None:
            self._make_room()
            counts.restart()
            kept = self._kept[counts.key] = counts
        return kept

    def documents(self) -> list[dict[str, Any]]:
        """Return a document for each shape, and one for all others if there are any."""
        if not self._parameters.query_shapes_max:
            self._clear()
        others = {"key": {"others": True}, "evicted": Int64(self._evicted), "metrics": self._others.metrics()}
        return [each.document() for each in self._kept.values()] + ([others] if self._evicted else [])

    def _find(self, request: Request, key: tuple[str, str, bytes, int], arguments: bytes) -> ShapeCounts:
        shape, free = _normalized(request.name, arguments)
        identity = (namespace_of(request), query_hash(shape))
        counts = self._kept.get(identity)
        if counts is None:
            self._make_room()
            counts = self._kept[identity] = ShapeCounts(identity, request.name, shape)
        if free is not None:
            self._learn(key, _Layout(arguments, free, counts))
        return counts

    def _learn(self, key: tuple[str, str, bytes, int], layout: _Layout) -> None:
        if self._layout_count >= _LAYOUTS_MAX:
            self._layouts.clear()
            self._layout_count = 0
        known = self._layouts.setdefault(key, [])
        if len(known) >= _LAYOUTS_PER_KEY_MAX:
            self._layout_count -= len(known)
            known.clear()
        known.append(layout)
        self._layout_count += 1

    def _make_room(self) -> None:
        shapes_max = self._parameters.query_shapes_max
        if len(self._kept) < shapes_max:
            return
        for each in self._kept.values():
            each.weigh()
        remaining = shapes_max - max(1, shapes_max // _EVICTED_FRACTION)
        by_use = sorted(self._kept.values(), key=_weight_of)
        for each in by_use[: len(by_use) - remaining]:
            self._others.add(each)
            self._evicted += 1
            each.is_kept = False
            del self._kept[each.key]

    def _clear(self) -> None:
        for each in self._kept.values():
            each.is_kept = False
        self._kept.clear()
        self._layouts.clear()
        self._layout_count = self._evicted = 0
        self._others = OperationCounts()


def merged_documents(of_processes: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Add up the documents of several processes by shape; see `QueryShapes.documents`."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for document in (each for documents in of_processes for each in documents):
        shape = document["key"].get("queryShape")
        key = () if shape is None else (shape["cmdNs"]["db"], shape["cmdNs"]["coll"], document["queryShapeHash"])
        known = found.get(key)
        if known is None:
            found[key] = dict(document)
            continue
        known["metrics"] = _sum(known["metrics"], document["metrics"])
        if "evicted" in known:
            known["evicted"] = Int64(known["evicted"] + document["evicted"])
    others = found.pop((), None)
    return [*found.values(), *([] if others is None else [others])]


def _sum(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Add up metrics: the bounds of a histogram stay, and of two times the earlier one."""
    total: dict[str, Any] = {}
    for name, value in ours.items():
        other = theirs[name]
        if isinstance(value, Mapping):
            total[name] = _sum(value, other)
        elif isinstance(value, list):
            total[name] = [_sum(*pair) for pair in zip(value, other, strict=True)]
        elif isinstance(value, datetime):
            total[name] = min(value, other)
        else:
            total[name] = value if name == "micros" else Int64(value + other)
    return total
