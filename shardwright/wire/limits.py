"""MongoDB 6.0's limits on messages and documents, some of which ``hello`` announces."""

from typing import Final

MESSAGE_BYTES_MAX: Final = 48_000_000
"""``maxMessageSizeBytes``: the longest frame, its header included."""

BSON_OBJECT_BYTES_MAX: Final = 16 * 1024 * 1024
"""``maxBsonObjectSize``: the largest document in a collection."""

BSON_OBJECT_INTERNAL_BYTES_MAX: Final = BSON_OBJECT_BYTES_MAX + 16 * 1024
"""The largest document inside a message: a stored document and room for the command around it."""

NESTING_LEVELS_MAX: Final = 201
"""How deeply the documents and arrays of a message may be nested, including the outermost document.

MongoDB documents a limit of 100; mongod 6.0.5 accepts 201 levels in a command body, or in a document of a sequence
section, and returns Overflow (15) for 202. `wire.rawbson.depth_exceeds` counts in the same way.
"""

STORED_NESTING_LEVELS_MAX: Final = 181
"""How deeply a document to be stored may be nested, including itself; one more is a write error Overflow (15)."""

WRITE_BATCH_OPERATIONS_MAX: Final = 100_000
"""``maxWriteBatchSize``: the most statements in one write command."""

LOGICAL_SESSION_TIMEOUT_MINUTES: Final = 30
"""``logicalSessionTimeoutMinutes``, unless the parameter ``localLogicalSessionTimeoutMinutes`` says otherwise."""

CONNECTIONS_MAX: Final = 1_000_000
"""``net.maxIncomingConnections``: the default limit on open client connections."""
