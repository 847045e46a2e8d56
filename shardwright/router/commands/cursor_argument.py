"""The ``cursor`` argument of the commands that list collections and indexes."""

from shardwright.wire.arguments import Arguments


def check_cursor(arguments: Arguments) -> None:
    """Refuse what a shard would refuse, where no shard is asked.

    Raises:
        CommandError: TypeMismatch, 40415, 51024.
    """
    cursor = arguments.maybe_nested(b"cursor")
    if cursor is not None:
        cursor.refuse_unknown((b"batchSize",))
        cursor.maybe_integer(b"batchSize")
