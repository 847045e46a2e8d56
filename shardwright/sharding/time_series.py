"""Sharded time-series collections, which shard the collection of their buckets.

Clients see the collection ``X`` of measurements. ``system.buckets.X`` holds buckets, each with measurements that have
the same metadata and lie within a limited time. A shard key of ``X`` names the metadata, fields of it, and the time. It
becomes a key on the corresponding fields of buckets: ``meta``, ``meta.<field>``, ``control.min.<time>``.

The rules, the rounding of times and the errors are MongoDB 6.0's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final

from bson.decimal128 import Decimal128

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.document_fields import optional, required
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    BOOL,
    DATE,
    OBJECT,
    append,
    decode_document,
    decode_value,
    element,
    encode_document,
    find,
    from_elements,
    index,
    spans,
    string_value,
    with_value,
    without,
)

BUCKETS_PREFIX: Final = "system.buckets."
IS_TIME_SERIES_NAMESPACE: Final = b"isTimeseriesNamespace"
"""Field of commands that name the buckets although the rest of the command is about measurements."""

META: Final = "meta"
"""Field of buckets with the metadata of their measurements."""

_CONTROL_MIN: Final = "control.min."
_CONTROL_MAX: Final = "control.max."
_DATA: Final = "data."

_NOT_A_KEY: Final = frozenset({b"$hint", b"$natural"})
"""First fields of hints that are not the key of an index."""

_POSITIONS: Final = "2dsphere"
_BUCKETED_POSITIONS: Final = "2dsphere_bucket"
"""Kinds of an index of positions, and of an index of buckets with all positions of their measurements."""

_HOUR_SECONDS: Final = 3600
_DAY_SECONDS: Final = 24 * _HOUR_SECONDS

GRANULARITIES: Final = ("seconds", "minutes", "hours")

_SPAN_SECONDS: Final = {"seconds": _HOUR_SECONDS, "minutes": _DAY_SECONDS, "hours": 30 * _DAY_SECONDS}
"""Longest time between measurements of a bucket, by granularity."""

_ROUNDING_SECONDS: Final = {"seconds": 60, "minutes": _HOUR_SECONDS, "hours": _DAY_SECONDS}
"""Rounding unit for the beginning of a bucket, which is rounded down, by granularity."""

_TIME_NOT_LAST: Final = 5914000
_FOREIGN_FIELD: Final = 5914001
_NO_TIME: Final = 5743702
"""MongoDB's numbers for errors without a name."""

_int64 = Struct("<q")


@dataclass(frozen=True, slots=True)
class TimeSeriesFields:
    """Bucketing parameters of a time-series collection; ``granularity`` is ``seconds``, ``minutes`` or ``hours``.

    ``bucket_max_span_seconds`` is as given when the collection was created; it follows from the granularity.
    """

    time_field: str
    meta_field: str | None = None
    granularity: str = "seconds"
    bucket_max_span_seconds: int | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "TimeSeriesFields":
        """Read ``timeseriesFields`` of the catalog, or the option ``timeseries`` of a collection."""
        return cls(
            required(document, "timeField", str),
            optional(document, "metaField", str),
            optional(document, "granularity", str) or "seconds",
            optional(document, "bucketMaxSpanSeconds", int),
        )

    @classmethod
    def of_entry(cls, document: Mapping[str, Any]) -> "TimeSeriesFields | None":
        """Read ``timeseriesFields`` of a collection in the catalog; None if it does not hold buckets."""
        fields = optional(document, "timeseriesFields", Mapping)
        return None if fields is None else cls.from_document(fields)

    def to_document(self) -> dict[str, Any]:
        """Build the document for the catalog."""
        document: dict[str, Any] = {"timeField": self.time_field}
        if self.meta_field is not None:
            document["metaField"] = self.meta_field
        document["granularity"] = self.granularity
        if self.bucket_max_span_seconds is not None:
            document["bucketMaxSpanSeconds"] = self.bucket_max_span_seconds
        return document

    def with_granularity(self, granularity: str) -> "TimeSeriesFields":
        """Return the parameters after a change of the granularity."""
        return replace(self, granularity=granularity, bucket_max_span_seconds=_SPAN_SECONDS[granularity])

    def makes_buckets_like(self, other: "TimeSeriesFields") -> bool:
        """Whether measurements become the same buckets, even if only one of the two states the maximum span."""
        return self.span_ms == other.span_ms and self == replace(
            other, bucket_max_span_seconds=self.bucket_max_span_seconds
        )

    @property
    def span_ms(self) -> int:
        """Maximum number of milliseconds between the beginning of a bucket and a measurement in it."""
        return 1000 * (self.bucket_max_span_seconds or _SPAN_SECONDS[self.granularity])

    @property
    def min_time_field(self) -> str:
        """Field of buckets with their beginning."""
        return _CONTROL_MIN + self.time_field

    # Keys

    def buckets_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a shard key of the measurements into a shard key of the buckets.

        Raises:
            CommandError: 5914000, the time is not the last field; 5914001, there are other fields than time and
                metadata; BadValue, the time is not ranged.
        """
        for position, name in enumerate(key, 1):
            if name == self.time_field:
                if position < len(key):
                    raise CommandError(
                        _TIME_NOT_LAST, f"the time field '{name}' can be only at the end of the shard key pattern"
                    )
            elif self.renamed(name) is None:
                raise CommandError(_FOREIGN_FIELD, "only the time field or meta field can be part of shard key pattern")
        return {name: way for each, way in key.items() for name, way in self._bucket_fields(key, each)}

    def _bucket_fields(self, key: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
        way = key[name]
        if name != self.time_field:
            yield self.renamed(name) or name, way
        elif (number := _number(way)) is None:
            raise self._invalid_index(key, name)
        else:
            if not number >= 0:  # refused as a shard key, with this text
                yield _CONTROL_MAX + name, way
            yield _CONTROL_MIN + name, way

    def buckets_index_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Translate the key of an index of measurements into the key of the index of buckets.

        Metadata keep their direction or kind. For every other field, buckets have the least and the greatest value, and
        are ordered by the one that the direction begins with. For positions they have all. Raises BadValue if
        measurements have no such index.
        """
        if not key:
            raise CommandError(ErrorCode.BadValue, "Empty object is not a valid index spec")
        found: dict[str, Any] = {}
        for name, way in key.items():
            if (renamed := self.renamed(name)) is not None:
                found[renamed] = way
            elif (number := _number(way)) is not None:
                bounds = (_CONTROL_MIN, _CONTROL_MAX) if number >= 0 else (_CONTROL_MAX, _CONTROL_MIN)
                found |= {bound + name: way for bound in bounds}
            elif way == _POSITIONS and name != self.time_field:
                found[_DATA + name] = _BUCKETED_POSITIONS
            else:
                raise self._invalid_index(key, name)
        return found

    def buckets_hint(self, hint: bytes) -> bytes:
        """Translate a raw hint for measurements into a raw hint for buckets.

        An index name or ``$natural`` stays as it is. Raises BadValue if measurements have no index with such a key.
        """
        first = next(spans(hint), None)
        if first is None or first[0] in _NOT_A_KEY:
            return hint
        return encode_document(self.buckets_index_key(decode_document(hint)))

    def _invalid_index(self, key: Mapping[str, Any], name: str) -> CommandError:
        allowed = (
            "the time field must be ascending or descending (numbers only)"
            if name == self.time_field
            else "measurement fields must be ascending or descending (numbers only), or '2dsphere'"
        )
        return CommandError(
            ErrorCode.BadValue,
            f"Invalid index spec for time-series collection: {document_text(encode_document(key))}. Indexes on "
            f"{allowed}: {document_text(encode_document({name: key[name]}))[2:-2]}",
        )

    def renamed(self, name: str) -> str | None:
        """Return the field of buckets for the metadata or a field of it; None for all other fields of measurements."""
        meta = self.meta_field
        if meta is None or not (name == meta or name.startswith(meta + ".")):
            return None
        return META + name[len(meta) :]

    # Measurements

    def bucket_of(self, measurement: bytes) -> bytes:
        """Build a document with the shard key of the bucket that this measurement would begin.

        A mongod rounds its time towards 1970, but the bucket's earliest time is never later than the measurement's. So
        before 1970 they are the same. Raises 5743702 if the measurement has no time.
        """
        name = self.time_field.encode()
        span = find(measurement, name)
        if span is None or span[0] != DATE:
            shown = f"'{self.time_field}' must be present and contain a valid BSON UTC datetime value"
            raise CommandError(_NO_TIME, shown)
        (time,) = _int64.unpack_from(measurement, span[2])
        rounded = _int64.pack(time if time < 0 else time - time % (1000 * _ROUNDING_SECONDS[self.granularity]))
        earliest = from_elements(element(b"min", OBJECT, from_elements(element(name, DATE, rounded))))
        elements = element(b"control", OBJECT, earliest)
        meta = None if self.meta_field is None else find(measurement, self.meta_field.encode())
        if meta is not None:
            elements += element(META.encode(), meta[0], measurement[meta[2] : meta[3]])
        return from_elements(elements)


def _number(way: object) -> float | None:
    """Return the number in a field of an index key; None if it is not a number."""
    if isinstance(way, Decimal128):
        return float(way.to_decimal())
    return way if isinstance(way, int | float) and not isinstance(way, bool) else None


def is_coarser(granularity: str, other: str) -> bool:
    """Whether buckets of one granularity span more time than buckets of another."""
    return GRANULARITIES.index(granularity) > GRANULARITIES.index(other)


def buckets_of(namespace: str) -> str:
    """Return the namespace of the buckets of a time-series collection, both as ``db.collection``."""
    db, _, collection = namespace.partition(".")
    return f"{db}.{BUCKETS_PREFIX}{collection}"


def measurements_of(buckets: str) -> str:
    """Return the time-series collection whose buckets a collection holds, both as ``db.collection``."""
    return buckets.replace(f".{BUCKETS_PREFIX}", ".", 1)


_IS_TIME_SERIES: Final = element(IS_TIME_SERIES_NAMESPACE, BOOL, b"\1")


def on_buckets(body: bytes) -> bytes:
    """Rename the collection of a command to the buckets, and mark its arguments as being about measurements."""
    return append(_renamed(body, BUCKETS_PREFIX + _collection(body)), _IS_TIME_SERIES)


def on_measurements(body: bytes) -> bytes:
    """Undo `on_buckets`."""
    return _renamed(without(body, (IS_TIME_SERIES_NAMESPACE,)), _collection(body).removeprefix(BUCKETS_PREFIX))


def _collection(body: bytes) -> str:
    return str(decode_value(body, next(iter(index(body).values()))))


def _renamed(body: bytes, collection: str) -> bytes:
    return with_value(body, next(iter(index(body).values())), string_value(collection))
