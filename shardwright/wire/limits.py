"""The limits that MongoDB 6.0 puts on messages and documents, as ``hello`` announces them where it does."""

from typing import Final

MESSAGE_BYTES_MAX: Final = 48_000_000
"""``maxMessageSizeBytes``: the longest frame, its header included."""

BSON_OBJECT_BYTES_MAX: Final = 16 * 1024 * 1024
"""``maxBsonObjectSize``: the largest document that a collection holds."""

BSON_OBJECT_INTERNAL_BYTES_MAX: Final = BSON_OBJECT_BYTES_MAX + 16 * 1024
"""The largest document inside a message: a stored document and room for the command around it."""

NESTING_LEVELS_MAX: Final = 201
"""How deep the documents and arrays of a message may be nested, the outermost document counted.

MongoDB documents a limit of 100; mongod 6.0.5 takes a command body, or a document of a sequence section, of 201 levels
and answers Overflow (15) to 202. `wire.rawbson.depth_exceeds` counts the same way.
"""

STORED_NESTING_LEVELS_MAX: Final = 181
"""How deep a document to be stored may be nested, itself counted; one more is a write error Overflow (15)."""

WRITE_BATCH_OPERATIONS_MAX: Final = 100_000
"""``maxWriteBatchSize``: the most statements in one write command."""

LOGICAL_SESSION_TIMEOUT_MINUTES: Final = 30
"""``logicalSessionTimeoutMinutes``."""

CONNECTIONS_MAX: Final = 1_000_000
"""``net.maxIncomingConnections``: the default bound on open client connections."""
