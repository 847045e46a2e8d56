"""``count`` and ``distinct``: the commands for the shards, and the merge of their results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import bson
from bson.decimal128 import Decimal128

from shardwright.sharding.bson_text import value_text
from shardwright.sharding.key_order import encode_value
from shardwright.wire.arguments import INT64_MAX, INT64_MIN, Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    EMPTY_DOCUMENT,
    OBJECT,
    append,
    array_of_documents,
    element,
    encode_elements,
    from_elements,
    spans,
    without,
)
from shardwright.wire.request import Request

_STRUCT: Final = "count"


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
