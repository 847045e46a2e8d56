"""The arithmetic of ``count``: the commands for the shards and the total of their results."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import bson
from bson.decimal128 import Decimal128

from shardwright.sharding.bson_text import value_text
from shardwright.wire.arguments import INT64_MAX, INT64_MIN, Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BOOL, EMPTY_DOCUMENT, append, encode_elements, without
from shardwright.wire.request import Request

_STRUCT: Final = "count"


@dataclass(frozen=True, slots=True)
class CountArguments:
    """The arguments of ``count`` that matter to the router.

    Attributes:
        query: the raw filter.
        limit: the largest result, 0 for no limit.
        skip: how many matches are not counted.
    """

    query: bytes
    limit: int
    skip: int

    @classmethod
    def parse(cls, request: Request) -> "CountArguments":
        """Check the arguments as mongod does. A negative limit means its magnitude.

        Raises:
            CommandError: TypeMismatch, BadValue or FailedToParse for a limit, 51024 for a negative skip, Overflow when
                limit and skip have no int64 sum.
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
        """The command for each shard, made from the client's: skipped documents have to be counted there as well."""
        if not self.limit and not self.skip:
            return body
        if not self.limit:
            return without(body, (b"skip",))  # a limit of 0 stays, which a view refuses
        limit = encode_elements({"limit": bson.Int64(self.limit + self.skip)})
        return append(without(body, (b"limit", b"skip")), limit)

    def total(self, counts: list[int]) -> int:
        """The result, given what each shard counted."""
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
    """A number that has to be an int64, like MongoDB's ``parseIntegerElementToLong``.

    Raises:
        CommandError: FailedToParse.
    """
    exact = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if exact.is_nan() and isinstance(value, float):
        raise CommandError(ErrorCode.FailedToParse, f"Expected an integer, but found NaN in: {shown}")
    if not exact.is_finite() or not INT64_MIN <= exact <= INT64_MAX:
        raise CommandError(ErrorCode.FailedToParse, f"Cannot represent as a 64-bit integer: {shown}")
    if exact != exact.to_integral_value():
        reason = "Expected an integer" if isinstance(value, float) else "Cannot represent as a 64-bit integer"
        raise CommandError(ErrorCode.FailedToParse, f"{reason}: {shown}")
    return int(exact)
