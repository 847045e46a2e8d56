"""``aggregate``, ``count`` and ``distinct``: arguments, commands for the shards, and the merge of their results.

The batch size of an ``aggregate`` and its form inside an ``explain`` are here too; `pipelines` divides its stages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import bson
from bson.decimal128 import Decimal128

from shardwright.sharding.bson_text import value_text
from shardwright.sharding.key_order import encode_value
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.arguments import INT64_MAX, INT64_MIN, Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field, value_too_small, wrong_type
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    DECIMAL128,
    DOUBLE,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    NULL,
    OBJECT,
    append,
    array_of_documents,
    decode_value,
    element,
    encode_elements,
    from_elements,
    index,
    spans,
    type_name,
    without,
)
from shardwright.wire.request import Request

_STRUCT: Final = "count"


def check_collectionless(request: Request) -> None:
    """Refuse an ``aggregate`` whose argument is neither a collection's name nor 1."""
    kind = next(iter(request.fields.values()))[0]
    if kind not in (INT32, INT64, DOUBLE, DECIMAL128):
        raise CommandError(ErrorCode.TypeMismatch, f"collection name has invalid type: {type_name(kind)}")
    number = request.get(b"aggregate")
    if (number.to_decimal() if isinstance(number, Decimal128) else number) != 1:
        raise CommandError(
            ErrorCode.FailedToParse,
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )


def check_not_empty(request: Request, pipeline: Pipeline) -> None:
    """Refuse an ``{aggregate: 1}`` without stages.

    Raises:
        CommandError: InvalidNamespace; or from `batch_size`.
    """
    if not pipeline.stages:
        batch_size(request)  # mongod reports its errors first
        raise CommandError(ErrorCode.InvalidNamespace, "{aggregate: 1} is not valid for an empty pipeline.")


PIPELINE: Final = b"pipeline"

_NEEDS_MERGE: Final = b"needsMerge"
_FROM_MONGOS: Final = b"fromMongos"
_BETWEEN_SERVERS: Final = (_NEEDS_MERGE, _FROM_MONGOS)
_REFUSED: Final = {
    b"exchange": (51028, "Cannot specify exchange option to a mongos"),
    b"runtimeConstants": (51143, "Cannot specify runtime constants option to a mongos"),
}

_NOT_EXPLAINED: Final = frozenset(
    {b"explain", b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db"}
)


def without_internal_fields(request: Request) -> Request:
    """Return an aggregation without the fields that routers add for shards, which a client may only set to false.

    Raises:
        CommandError: FailedToParse, 51089, 51028, 51143; TypeMismatch, also for an ``explain`` that is not a boolean.
    """
    fields = request.fields
    explain = fields.get(b"explain")
    if explain is not None and explain[0] != BOOL:
        raise CommandError(ErrorCode.TypeMismatch, "explain must be a boolean")
    if _NEEDS_MERGE in fields and _FROM_MONGOS not in fields:
        raise CommandError(ErrorCode.FailedToParse, "Cannot specify 'needsMerge' without 'fromMongos'")
    for name, (code, message) in _REFUSED.items():
        if name in fields:
            raise CommandError(code, message)
    for name in _BETWEEN_SERVERS:
        if name in fields and (fields[name][0] != BOOL or request.get(name)):
            raise CommandError(
                51089, "Internal parameter(s) [needsMerge, fromMongos] cannot be set to 'true' when sent to mongos"
            )
    return request.without(_BETWEEN_SERVERS)


def batch_size(request: Request) -> int | None:
    """Return ``cursor.batchSize``, None if it is not given.

    Raises:
        CommandError: FailedToParse with neither ``cursor`` nor ``explain``, TypeMismatch, 51024 for a negative number.
    """
    span = request.fields.get(b"cursor")
    if span is None:
        if b"explain" in request.fields:
            return None
        raise CommandError(
            ErrorCode.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument"
        )
    if span[0] != OBJECT:
        raise CommandError(ErrorCode.TypeMismatch, "cursor field must be missing or an object")
    for name, each in index(request.body, span[2]).items():
        if name != b"batchSize":
            raise unknown_field(f"cursor.{name.decode(errors='replace')}")
        value = decode_value(request.body, each)
        if each[0] in (BOOL, NULL) or not isinstance(value, int | float):
            raise wrong_type("cursor.batchSize", each[0], "long", "int", "decimal", "double")
        if value < 0:
            raise value_too_small("batchSize", clamp_int64(value), 0)
        return clamp_int64(value)
    return None


def as_explained(request: Request) -> bytes:
    """Convert ``{aggregate, explain: true}`` to the command inside an ``explain``."""
    body = without(request.body, _NOT_EXPLAINED)
    return body if b"cursor" in request.fields else append(body, encode_elements({"cursor": {}}))


@dataclass(frozen=True, slots=True)
class CountArguments:
    """The arguments of ``count`` that the router interprets.

    Attributes:
        limit: the largest result, 0 for no limit.
        skip: the number of matches to leave out of the count.
    """

    query: bytes
    limit: int
    skip: int

    @classmethod
    def parse(cls, request: Request) -> "CountArguments":
        """Check the arguments as mongod does. A negative limit means its magnitude.

        Raises:
            CommandError: TypeMismatch; BadValue or FailedToParse for a limit; 51024 for a negative skip; Overflow when
                the sum of limit and skip is not an int64.
        """
        given = Arguments.of(request, _STRUCT)
        query = given.maybe_raw(b"query")
        arguments = cls(
            EMPTY_DOCUMENT if query is None else query,
            _limit(request),
            given.maybe_integer(b"skip") or 0,
        )
        if arguments.limit + arguments.skip > INT64_MAX:
            raise CommandError(
                ErrorCode.Overflow,
                "Overflow on the count command: The sum of the limit and skip fields must fit into a long integer. "
                f"Limit: {arguments.limit}   Skip: {arguments.skip}",
            )
        return arguments

    def body_for_shards(self, body: bytes) -> bytes:
        """Convert the client's command for each shard. Shards count skipped documents as well."""
        if not self.limit and not self.skip:
            return body
        if not self.limit:
            return without(body, (b"skip",))  # keeps a limit of 0, because a view refuses it
        limit = encode_elements({"limit": bson.Int64(self.limit + self.skip)})
        return append(without(body, (b"limit", b"skip")), limit)

    def total(self, counts: list[int]) -> int:
        """Return the result, given the counts of the shards."""
        total = max(sum(counts) - self.skip, 0)
        return min(total, self.limit) if self.limit else total


def _limit(request: Request) -> int:
    span = request.fields.get(b"limit")
    if span is None:
        return 0
    value: Any = request.get(b"limit")
    if span[0] == BOOL or not isinstance(value, int | float | Decimal128):
        raise CommandError(ErrorCode.BadValue, "limit value is not a valid number")
    limit = _integral(value, f"limit: {value_text(request.body, span)}")
    if limit == INT64_MIN:
        raise CommandError(ErrorCode.BadValue, "limit value for count cannot be min long")
    return abs(limit)


def _integral(value: int | float | Decimal128, shown: str) -> int:
    """Convert a number to an int64, like MongoDB's ``parseIntegerElementToLong``."""
    exact = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if exact.is_nan() and isinstance(value, float):
        raise CommandError(ErrorCode.FailedToParse, f"Expected an integer, but found NaN in: {shown}")
    if not exact.is_finite() or not INT64_MIN <= exact <= INT64_MAX:
        raise CommandError(ErrorCode.FailedToParse, f"Cannot represent as a 64-bit integer: {shown}")
    if exact != exact.to_integral_value():
        reason = "Expected an integer" if isinstance(value, float) else "Cannot represent as a 64-bit integer"
        raise CommandError(ErrorCode.FailedToParse, f"{reason}: {shown}")
    return int(exact)


DISTINCT_TOO_BIG: Final = 17217


def merge_values(arrays: Iterable[bytes]) -> bytes:
    """Merge arrays into the distinct values in order, compared without a collation.

    Raises:
        CommandError: 17217, the result is larger than a document may be.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    for array in arrays:
        for _, span in spans(array):
            key = encode_value(array, span)
            if key not in found:
                found[key] = (span[0], array[span[2] : span[3]])
    ordered = [found[key] for key in sorted(found)]
    merged = from_elements(
        b"".join([element(b"%d" % position, kind, value) for position, (kind, value) in enumerate(ordered)])
    )
    if len(merged) > BSON_OBJECT_BYTES_MAX:
        raise CommandError(DISTINCT_TOO_BIG, "distinct too big, 16mb cap")
    return merged


def merging_aggregate(arrays: Iterable[bytes], collation: Mapping[str, Any], db: str) -> bytes:
    """Build the aggregation that merges values on a mongod, because the router cannot apply collations.

    Its only result, absent if there are no values, contains the array ``values``.
    """
    documents = [
        from_elements(element(b"value", OBJECT, from_elements(element(b"$literal", span[0], array[span[2] : span[3]]))))
        for array in arrays
        for _, span in spans(array)
    ]
    stages = [
        from_elements(element(b"$documents", ARRAY, array_of_documents(documents))),
        from_elements(encode_elements({"$group": {"_id": "$value"}})),
        from_elements(encode_elements({"$sort": {"_id": 1}})),
        from_elements(encode_elements({"$group": {"_id": None, "values": {"$push": "$_id"}}})),
    ]
    return from_elements(
        encode_elements({"aggregate": 1})
        + element(b"pipeline", ARRAY, array_of_documents(stages))
        + encode_elements({"cursor": {}, "collation": dict(collation), "$db": db})
    )
