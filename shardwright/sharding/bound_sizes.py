"""How large the bounds of a chunk may be. No I/O."""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX

_OTHER_BYTES: Final = 64 * 1024
"""Left for the other fields of an oplog entry, and for the fields by which a key may be refined."""


def check_bounds_fit(low: bytes, high: bytes) -> None:
    """Refuse bounds of a new chunk that shards could not persist, so that no change of the collection would end.

    A shard keeps its chunks by their lower bounds (``config.cache.chunks.<namespace>``), and mongod's oplog entry of an
    insert contains the document and once more its ``_id``.

    Raises:
        CommandError: BSONObjectTooLarge.
    """
    size, size_max = 2 * len(low) + len(high), BSON_OBJECT_BYTES_MAX - _OTHER_BYTES
    if size > size_max:
        raise CommandError(
            ErrorCode.BSONObjectTooLarge,
            f"The bounds of a chunk are too large: the upper one, and twice the lower one, have {size} bytes, of which"
            f" {size_max} are allowed",
        )
