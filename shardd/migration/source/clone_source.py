"""The data of one migration as its recipient pulls it from the donor: first a clone, then modifications.

The clone is a scan of the index that supports the shard key. The oplog is followed from before that scan began, and the
ids of touched documents are queued; a batch of modifications is the newest version of some of them, or the word that
they are gone. So the order in which anything is applied matters only where a batch says: deletions come first.

Batches are numbered, so that a reply that was lost can be asked for again: the number that was asked for last gives the
same clone batch, or modifications of at least the same ids; the next number says that the last one arrived.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from bson.timestamp import Timestamp

from daemon.sidecar.mongod import LocalMongod
from sharding.chunks import ChunkRange
from sharding.namespace import Namespace
from sharding.shard_key import ShardKeyPattern

QUEUED_BYTES_MAX: Final = 500 * 1024 * 1024
"""MongoDB's bound on what a donor keeps in memory for one migration."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much a range holds, by the average size of the collection's documents.

    Attributes:
        documents: how many documents have a shard key in the range.
        bytes: of all of them together.
        average_bytes: of one document of the collection; 0 when it is empty.
    """

    documents: int
    bytes: int
    average_bytes: int


@dataclass(frozen=True, slots=True)
class TransferredMods:
    """One batch of modifications; to be applied deletions first.

    Attributes:
        deleted: documents ``{_id}``, raw, that are not in the range any longer, or not there at all.
        reload: the newest versions of changed documents that are, raw.
        size: bytes of both; 0 says that nothing is queued at the moment.
        position: every change with a time up to this one has been handed out, in this batch or before. A source that
            starts from here misses nothing.
    """

    deleted: tuple[bytes, ...]
    reload: tuple[bytes, ...]
    size: int
    position: Timestamp


class CloneSource:
    """The data of one migration.

    Args:
        mongod: the donor's own mongod, which is primary.
        namespace: the collection.
        collection_uuid: its UUID; a collection of another UUID under that name is another one.
        pattern: its shard key.
        range: what is to be moved.
        session_id: of the migration, for logs.
        observe: called with raw oplog entries, in the order of their times, that wrote to the collection: inserts,
            updates, deletes and no-ops of its namespace, and the ``applyOps`` entries (all of a chain, the oldest
            first, once it has committed) of transactions that touched it. The session history is made of them.
        queued_bytes_max: how much memory queued ids may take.

    Attributes:
        session_id: see above.
        documents_cloned: how many documents the clone batches that were asked for held.
        bytes_cloned: and how many bytes.
        is_clone_exhausted: whether the empty last batch of the clone has been asked for.
        queued_ids: how many ids wait to be handed out.
        queued_bytes: about how much memory they take.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        namespace: Namespace,
        collection_uuid: UUID,
        pattern: ShardKeyPattern,
        range: ChunkRange,  # noqa: A002 - MongoDB's word
        session_id: str,
        *,
        observe: Callable[[bytes], None] | None = None,
        queued_bytes_max: int = QUEUED_BYTES_MAX,
    ) -> None:
        self.session_id = session_id
        self.documents_cloned = 0
        self.bytes_cloned = 0
        self.is_clone_exhausted = False
        self.queued_ids = 0
        self.queued_bytes = 0

    async def start(self, *, position: Timestamp | None = None, from_key: bytes | None = None) -> Timestamp:
        """Open the cursor on the oplog, then the one on the documents; `run` has to follow.

        Args:
            position: the oplog is followed from after this time; by default from what a majority has now.
            from_key: a shard key document from which on documents are cloned; by default all of the range.

        Returns:
            The time after which the oplog is followed.

        Raises:
            CommandError: CappedPositionLost, the oplog does not reach back to ``position``; IndexNotFound, no index
                supports the shard key; NamespaceNotFound, the collection is not there or is another one.
            BackendError: the mongod does not answer.
        """
        raise NotImplementedError

    async def run(self) -> None:
        """Follow the oplog and read ahead until `close`; the cursors are gone when this has returned or raised.

        Raises:
            CommandError: the migration cannot go on: ExceededMemoryLimit, CappedPositionLost,
                NamespaceNotFound when the collection was dropped or renamed, OperationFailed when its options or
                indexes changed in a way that the recipient would not learn of, or what mongod said.
            BackendError: the mongod has gone.
        """
        raise NotImplementedError

    async def next_clone_batch(self, number: int | None = None) -> memoryview:
        """The documents of the next clone batch as a raw BSON array, an empty one when there are no more.

        Args:
            number: which one, from 0; None for the next.

        Raises:
            CommandError: BadValue, ``number`` is neither the last one nor the next; what ended `run`.
        """
        raise NotImplementedError

    async def next_mods(self, number: int | None = None) -> TransferredMods:
        """The next batch of modifications, of about 16 MB at the most (one document may be longer than that).

        Args:
            number: which one, from 0, which says that all before have arrived; None for the next.

        Raises:
            CommandError: BadValue, ``number`` is neither the last one nor the next; what ended `run`.
        """
        raise NotImplementedError

    async def wait_followed(self, time: Timestamp) -> None:
        """Return when all changes up to ``time`` have been queued.

        Raises:
            CommandError: what ended `run`, or NotWritablePrimary.
        """
        raise NotImplementedError

    async def estimate(self) -> Estimate:
        """How much the range holds; an index scan in mongod, of some milliseconds for 10,000 documents.

        Raises:
            CommandError: there is no index that supports the shard key.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let `run` end; what waits for batches gets an Interrupted error. Closing again is fine."""
        raise NotImplementedError
