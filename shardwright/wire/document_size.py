"""The size that documents may have in messages between servers, or to a client."""

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_INTERNAL_BYTES_MAX


def check_size(size: int) -> None:
    """Refuse what does not fit into one document.

    Raises:
        CommandError: BSONObjectTooLarge.
    """
    if size > BSON_OBJECT_INTERNAL_BYTES_MAX:
        raise CommandError(
            ErrorCode.BSONObjectTooLarge,
            f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
            f"{BSON_OBJECT_INTERNAL_BYTES_MAX}(16MB)",
        )
