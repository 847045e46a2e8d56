"""The label that allows drivers to send a write again, in errors of a daemon as in its mongod's own."""

from typing import Final

from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.request import Request

_WRITES: Final = frozenset({"delete", "findAndModify", "findandmodify", "insert", "update"})


def label_retryable_write(error: CommandError, request: Request) -> None:
    """Label the error of a retryable write that a driver may send again, as mongod does (``ErrorLabelBuilder``).

    Routers return a shard's reply to the client unchanged, so it needs the label already.
    """
    fields = request.fields
    if request.name not in _WRITES or b"txnNumber" not in fields or b"autocommit" in fields:
        return
    if RETRYABLE_WRITE_ERROR not in error.labels and has_category(error.code, Category.RETRYABLE):
        error.labels = (*error.labels, RETRYABLE_WRITE_ERROR)
