"""MongoDB 6.0's limits on messages and documents, and the batching that respects them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, raw_document

MESSAGE_BYTES_MAX: Final = 48_000_000
"""``maxMessageSizeBytes``: the longest frame, header included."""

BSON_OBJECT_BYTES_MAX: Final = 16 * 1024 * 1024
"""``maxBsonObjectSize``: the largest document in a collection."""

BSON_OBJECT_INTERNAL_BYTES_MAX: Final = BSON_OBJECT_BYTES_MAX + 16 * 1024
"""Largest document inside a message: a stored document plus room for the command around it."""

NESTING_LEVELS_MAX: Final = 201
"""Maximum nesting depth of documents and arrays in a message, including the outermost document.

The manual says 100; mongod 6.0.5 accepts 201 levels in a command body or in a document of a sequence section, and
returns Overflow (15) for 202. `wire.rawbson.depth_exceeds` counts in the same way.
"""

STORED_NESTING_LEVELS_MAX: Final = 181
"""Maximum nesting depth of a stored document, including itself; one more is a write error Overflow (15)."""

WRITE_BATCH_OPERATIONS_MAX: Final = 100_000
"""``maxWriteBatchSize``: the most statements in one write command."""

LOGICAL_SESSION_TIMEOUT_MINUTES: Final = 30
"""Default of ``logicalSessionTimeoutMinutes``; the parameter ``localLogicalSessionTimeoutMinutes`` overrides it."""

CONNECTIONS_MAX: Final = 1_000_000
"""``net.maxIncomingConnections``: the default limit on open client connections."""


def check_size(size: int) -> None:
    """Raise BSONObjectTooLarge for an encoded size that does not fit into one document."""
    if size > BSON_OBJECT_INTERNAL_BYTES_MAX:
        raise CommandError(
            ErrorCode.BSONObjectTooLarge,
            f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
            f"{BSON_OBJECT_INTERNAL_BYTES_MAX}(16MB)",
        )


ITEMS_MAX: Final = 10_000
"""Most documents or statements in a command. The limit lets other commands run between two of them."""

_ELEMENT_BYTES: Final = 1 + 5 + 1  # the type and the name of an element of an array, of at most five digits


def write_batches(items: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Batch documents or statements by `ITEMS_MAX` and by size, leaving room for the rest of the command.

    A document of the maximum size gets a batch of its own.
    """
    batch: list[Mapping[str, Any]] = []
    size = 0
    for item in items:
        encoded = encode_document(item)
        added = len(encoded) + _ELEMENT_BYTES
        if batch and (len(batch) == ITEMS_MAX or size + added > BSON_OBJECT_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(raw_document(encoded))
        size += added
    if batch:
        yield batch
