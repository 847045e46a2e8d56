"""A cursor whose results come from several shards."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from shardwright.router.cursors.batch_relay import BatchRelay, relay_for
from shardwright.router.cursors.cursor import API_PARAMETERS, GetMore
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS, Batch, ResultMerger
from shardwright.router.replies.cursor_reply import FIRST_BATCH, NEXT_BATCH, CursorReply, cursor_element
from shardwright.router.replies.reply_builder import raw_reply
from shardwright.router.replies.shard_reply import ShardReply, latest_operation_time
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.reply_memory import UNREAD_REPLIES
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

_PASSED_ON: Final = (b"lsid", b"txnNumber", b"autocommit", b"comment")
"""Fields of the client's ``getMore`` that are copied to a shard's, in addition to the `API_PARAMETERS`."""


class MergedCursor:
    """Merges the cursors of several shards.

    Without sort, skip and limit, a shard's whole reply is forwarded to the client. Views are an exception, because
    their shards' cursors are on the underlying collection.
    """

    __slots__ = (
        "_allows_partial_results",
        "_at_cluster_time",
        "_is_partial",
        "_merger",
        "_namespace",
        "_operation_time",
        "_passed_on",
        "_remotes",
        "_sender",
    )

    def __init__(
        self,
        sender: ShardSender,
        namespace: str,
        replies: Sequence[ShardReply],
        merger: ResultMerger,
        *,
        allows_partial_results: bool = False,
        is_partial: bool = False,
        at_cluster_time: Any = None,  # noqa: ANN401 - a BSON timestamp or nothing
        has_api_parameters: bool = True,
    ) -> None:
        """Adopt the cursors that shards have opened.

        Args:
            namespace: ``db.collection`` for replies and ``getMore``.
            replies: the successful replies that opened the cursors, as many as ``merger`` has sources.
            allows_partial_results: whether to leave out a shard that becomes unreachable, rather than fail.
            is_partial: whether a shard has been left out already.
            at_cluster_time: the common read time of all shards, if one was chosen.
            has_api_parameters: whether the shards' cursors were opened with the client's `API_PARAMETERS`.

        Raises:
            RemoteProtocolError: a reply has no cursor, or documents without their sort keys.
        """
        self._sender = sender
        self._namespace = namespace
        self._merger = merger
        self._allows_partial_results = allows_partial_results
        self._is_partial = is_partial
        self._at_cluster_time = at_cluster_time
        self._passed_on = (*_PASSED_ON, *API_PARAMETERS) if has_api_parameters else _PASSED_ON
        self._operation_time = latest_operation_time(replies)
        self._remotes: list[RemoteCursor] = []
        for number, reply in enumerate(replies):
            cursor = CursorReply.of(reply)
            self._remotes.append(RemoteCursor.opened(sender, reply, cursor))
            self._is_partial = self._is_partial or cursor.is_partial
            merger.feed(number, cursor.array(), is_exhausted=not cursor.cursor_id)

    @property
    def namespace(self) -> str:
        """See `Cursor`."""
        return self._namespace

    @property
    def remotes(self) -> Sequence[RemoteCursor]:
        """See `Cursor`."""
        return self._remotes

    @property
    def is_exhausted(self) -> bool:
        """See `Cursor`."""
        return self._merger.is_done

    @property
    def held_bytes(self) -> int:
        """See `Cursor`."""
        return self._merger.held_bytes

    @may_run_in_reactor
    async def first_batch(self, opening: GetMore) -> list[bytes]:
        """Return the documents of the first batch.

        Args:
            opening: the command that opens the cursor; without a batch size, the default number applies.

        Raises:
            ShareTooSmallError: the shards' shares of the result may not be all of it.
        """
        batch = Batch(FIRST_BATCH_DOCUMENTS if opening.batch_size is None else opening.batch_size)
        await self._fill(opening, batch)
        self._merger.check_shares()
        return batch.documents

    def first_reply(self, opening: GetMore, documents: list[bytes], cursor_id: int) -> bytes:
        """See `OpeningCursor`."""
        return self._reply(opening, FIRST_BATCH, documents, cursor_id)

    async def next_batch(self, get_more: GetMore) -> bytes | None:
        """Reply to a ``getMore`` with the requested number of documents; without a number, with the available ones.

        Raises:
            CommandError: BadValue for ``maxTimeMS``, which is for cursors that await data; or a shard failed.
        """
        if get_more.max_time_ms:
            raise CommandError(ErrorCode.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
        if get_more.batch_size is None and self._merger.is_unbounded:
            return await self._next_ready(get_more)
        batch = Batch(get_more.batch_size)
        await self._fill(get_more, batch)
        return self._reply(get_more, NEXT_BATCH, batch.documents, self._remaining_id(get_more))

    async def _next_ready(self, get_more: GetMore) -> bytes | None:
        """Reply with the first available documents: the rest of started batches, or else a shard's whole batch."""
        batch = Batch(None)
        self._merger.fill(batch)
        while not batch.documents and (starving := self._merger.starving()):
            number = starving[0]
            for other in starving[1:]:
                await self._ask_ahead(get_more, other, None)
            is_passed_on = not self._is_partial and self._remotes[number].namespace == self._namespace
            relay = self._relay(get_more, number) if is_passed_on else None
            for _, cursor in await self._fetch(get_more, {number: None}, relay):
                is_whole_answer = is_passed_on and not cursor.is_empty
                documents = None if is_whole_answer else cursor.array()
                self._merger.feed(number, documents, is_exhausted=self._remotes[number].is_exhausted)
                if relay is not None and relay.digest:
                    return None
                if is_whole_answer:
                    return cursor.with_cursor_id(self._remaining_id(get_more), get_more.request.message.request_id)
            self._merger.fill(batch)
        return self._reply(get_more, NEXT_BATCH, batch.documents, self._remaining_id(get_more))

    def _remaining_id(self, get_more: GetMore) -> int:
        """Return the cursor id for the reply: 0 once all results have been returned."""
        return 0 if self.is_exhausted else get_more.cursor_id

    @may_run_in_reactor
    async def _ask_ahead(self, get_more: GetMore, number: int, batch_size: int | None) -> None:
        """Request a batch that will soon be needed in advance; errors are raised when it is read."""
        remote = self._remotes[number]
        if not remote.may_ask_ahead():
            return
        await in_own_task()
        with suppress(CommandError):
            elements = raw_elements(get_more.request, self._passed_on)
            await remote.ask_ahead(remote.get_more_frame(batch_size, elements))

    def _relay(self, get_more: GetMore, number: int) -> BatchRelay | None:
        if not self._remotes[number].is_plain:
            return None
        others_are_exhausted = all(remote.is_exhausted for other, remote in enumerate(self._remotes) if other != number)
        return relay_for(get_more, self._sender.signer, is_last=others_are_exhausted)

    @may_run_in_reactor
    async def _fill(self, get_more: GetMore, batch: Batch) -> None:
        """Move documents into the batch until it is full or there are no more, fetching from shards as needed."""
        while True:
            self._merger.fill(batch)
            if get_more.client is not None and get_more.client.reserved_bytes:
                UNREAD_REPLIES.reservations.settle(get_more.client, self._merger.held_bytes + batch.size)
            if batch.is_full or self._merger.is_done:
                return
            starving = self._merger.starving()
            if not starving:
                return  # the next document is available, but does not fit into the batch
            wanted = self._merger.wanted(batch)
            sizes = {number: self._remotes[number].merged_batch_size(wanted) for number in starving}
            for number, cursor in await self._fetch(get_more, sizes):
                remote = self._remotes[number]
                remote.note_merged_batch(sizes[number], len(cursor.frame))
                self._merger.feed(number, cursor.array(), is_exhausted=remote.is_exhausted)
                # Even if all shards return as much as this one, more is needed.
                is_more_needed = wanted is None or wanted > sizes[number] * len(self._remotes)
                if is_more_needed and not remote.is_exhausted:
                    await self._ask_ahead(get_more, number, remote.merged_batch_size(wanted))

    @may_run_in_reactor
    async def _fetch(
        self,
        get_more: GetMore,
        batch_sizes: Mapping[int, int | None],
        relay: BatchRelay | None = None,
    ) -> list[tuple[int, CursorReply]]:
        """Fetch the next batches of some sources concurrently.

        Args:
            batch_sizes: the number of documents to request from each source, None for as many as fit.
        """
        await in_own_task()
        elements = raw_elements(get_more.request, self._passed_on)
        replies: dict[int, CursorReply] = {}
        failures: dict[int, CommandError] = {}

        async def fetch(number: int, batch_size: int | None) -> None:
            remote = self._remotes[number]
            try:
                reply = await remote.exchange(remote.get_more_frame(batch_size, elements), relay)
                if reply.error is not None:
                    raise reply.error
            except CommandError as error:
                failures[number] = error
            else:
                self._operation_time = max(self._operation_time, reply.operation_time)
                replies[number] = cursor = CursorReply.of(reply)
                remote.id = cursor.cursor_id

        async with trio.open_nursery() as nursery:
            for number, batch_size in batch_sizes.items():
                nursery.start_soon(fetch, number, batch_size)
        for number, error in failures.items():
            if not (self._allows_partial_results and has_category(error.code, Category.NETWORK)):
                raise error
            self._is_partial = True
            self._remotes[number].id = 0
            self._merger.feed(number, None, is_exhausted=True)
        return sorted(replies.items())

    def _reply(self, get_more: GetMore, batch_name: bytes, documents: list[bytes], cursor_id: int) -> bytes:
        element = cursor_element(
            batch_name,
            documents,
            cursor_id,
            self._namespace,
            is_partial=self._is_partial,
            at_cluster_time=self._at_cluster_time,
        )
        return raw_reply(get_more.request.message.request_id, element, self._sender.clock, self._operation_time)
