"""What an ``aggregate`` is run on if that is not a collection."""

from bson.decimal128 import Decimal128

from shardwright.router.reads.aggregate import batch_size
from shardwright.router.reads.pipeline import Pipeline
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import DECIMAL128, DOUBLE, INT32, INT64
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name


def check_collectionless(request: Request) -> None:
    """Refuse an ``aggregate`` whose argument is neither a collection's name nor 1.

    Raises:
        CommandError: TypeMismatch, FailedToParse.
    """
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
        CommandError: InvalidNamespace; see also `batch_size`.
    """
    if not pipeline.stages:
        batch_size(request)  # which mongod looks at first
        raise CommandError(ErrorCode.InvalidNamespace, "{aggregate: 1} is not valid for an empty pipeline.")
