"""Stages that need all documents of a stream at once: they run on a mongod.

If the documents are few, the mongod is handed them. Otherwise it reads them from this router, through a cursor of the
router that ``$mergeCursors`` names.
"""

from collections.abc import Sequence
from typing import Final

import bson

from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.cursors.session import NOBODY
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.stage_building import documents_stage, stage
from shardwright.router.joins.stream_cursor import StreamCursor
from shardwright.router.joins.streams import DocumentStream, PrefetchedStream, remotes_of
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import encode_elements

HANDED_BYTES_MAX: Final = 1024 * 1024
"""Up to which size documents are handed over rather than read from the router."""

_ROUTER: Final = "router"


class ComputedStream:
    """See `streams.DocumentStream`."""

    def __init__(self, environment: JoinEnvironment, source: DocumentStream, stages: Sequence[bytes]) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            source: the documents.
            stages: raw.
        """
        self._environment = environment
        self._source = source
        self._stages = stages
        self._results: DocumentStream | None = None

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `streams.DocumentStream`."""
        return remotes_of(self._source, self._results)

    async def next_batch(self) -> list[bytes]:
        """See `streams.DocumentStream`."""
        if self._results is None:
            self._results = await self._open()
        return await self._results.next_batch()

    async def _open(self) -> DocumentStream:
        first: list[bytes] = []
        size = 0
        while batch := await self._source.next_batch():
            first += batch
            size += sum(map(len, batch))
            if size > HANDED_BYTES_MAX:
                return await self._open_reading(PrefetchedStream(first, self._source))
        return await self._environment.compute([documents_stage(first), *self._stages])

    async def _open_reading(self, source: DocumentStream) -> DocumentStream:
        """Have a mongod read the documents from this router."""
        context = self._environment.operation.context
        namespace = str(Namespace.collectionless_aggregate(self._environment.db))
        # Without a session, since the mongod reads it without one. It ends the cursor when its own is ended.
        cursor_id = context.cursors.open(StreamCursor(context.clock, namespace, source), NOBODY)
        reply = {"cursor": {"firstBatch": [], "id": bson.Int64(cursor_id), "ns": namespace}, "ok": 1.0}
        remote = {"shardId": _ROUTER, "hostAndPort": context.options.address, "cursorResponse": reply}
        merging = {"compareWholeSortKey": False, "remotes": [remote], "nss": namespace, "allowPartialResults": False}
        is_open = False
        try:
            stages = [stage("$mergeCursors", merging), *self._stages]
            results = await self._environment.compute(stages, elements=encode_elements({"fromMongos": True}))
            is_open = True
            return results
        finally:
            if not is_open:
                context.cursors.kill(cursor_id)
