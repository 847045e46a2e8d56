"""A cursor for the documents of a stream."""

from collections import deque
from collections.abc import Sequence

from bson.timestamp import Timestamp

from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.joins.streams import DocumentStream
from shardwright.router.reads.batch import FIRST_BATCH_DOCUMENTS, Batch
from shardwright.router.replies.cursor_reply import FIRST_BATCH, NEXT_BATCH, cursor_element
from shardwright.router.replies.own_reply import raw_reply
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class StreamCursor:
    """See `cursors.cursor.Cursor`.

    Attributes:
        namespace: the ``db.collection`` that ``getMore`` has to name.
        held_bytes: memory used by documents that were read and not returned yet.
        is_exhausted: whether everything has been returned.
    """

    def __init__(
        self, clock: VectorClock, namespace: str, stream: DocumentStream, *, at_cluster_time: Timestamp | None = None
    ) -> None:
        """Create it.

        Args:
            clock: the newest times seen in the cluster.
            namespace: see above.
            stream: the documents.
            at_cluster_time: of the snapshot that they are from, which replies name; None if they are from none.
        """
        self.namespace = namespace
        self.held_bytes = 0
        self.is_exhausted = False
        self._clock = clock
        self._stream = stream
        self._at_cluster_time = at_cluster_time
        self._pending: deque[bytes] = deque()
        self._has_ended = False

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """The cursors on shards that the stream reads now."""
        return self._stream.remotes

    async def first_batch(self, opening: GetMore) -> list[bytes]:
        """The documents of the first batch; of the default number if none is given.

        Raises:
            CommandError: they could not be read.
        """
        size = FIRST_BATCH_DOCUMENTS if opening.batch_size is None else opening.batch_size
        return await self._read(Batch(size))

    def first_reply(self, opening: GetMore, documents: list[bytes], cursor_id: int) -> bytes:
        """The reply to the command that opened the cursor; ``cursor_id`` is 0 if it is exhausted."""
        return self._reply(opening, FIRST_BATCH, documents, cursor_id)

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """Answer a ``getMore``: with as many documents as it asks for, or with those that are ready.

        Raises:
            CommandError: BadValue for ``maxTimeMS``, which is for cursors that await data; or they could not be read.
        """
        if get_more.max_time_ms:
            raise CommandError(ErrorCode.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
        documents = await self._read(Batch(get_more.batch_size))
        return self._reply(get_more, NEXT_BATCH, documents, 0 if self.is_exhausted else get_more.cursor_id)

    async def _read(self, batch: Batch) -> list[bytes]:
        while True:
            while self._pending and batch.add(self._pending[0]):
                self.held_bytes -= len(self._pending.popleft())
            has_enough = batch.is_full or (batch.documents_max is None and batch.documents)
            if self._pending or self._has_ended or has_enough:
                break
            documents = await self._stream.next_batch()
            self._has_ended = not documents
            self._pending.extend(documents)
            self.held_bytes += sum(map(len, documents))
        self.is_exhausted = self._has_ended and not self._pending
        return batch.documents

    def _reply(self, get_more: GetMore, batch_name: bytes, documents: list[bytes], cursor_id: int) -> bytes:
        element = cursor_element(
            batch_name, documents, cursor_id, self.namespace, at_cluster_time=self._at_cluster_time
        )
        return raw_reply(get_more.request.message.request_id, element, self._clock)
