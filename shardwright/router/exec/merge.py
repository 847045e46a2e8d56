"""The stage that merges the cursors of several shards.

`router.reads.result_merger.ResultMerger` applies the order, ``skip`` and ``limit``, because they determine how many
documents are requested from each shard.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import trio
from bson.timestamp import Timestamp

from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.shard import BatchRelay, relay_for
from shardwright.router.exec.stage import AS_CLIENT, RELAYED, GetMore, Stage
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS, Batch, ResultMerger
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply, latest_operation_time
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.request import raw_elements
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reservations import SERVED_CLIENT

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection


class MergeStage(Stage):
    """The merged documents of cursors on several shards.

    Without sort, skip and limit, a shard's whole reply is forwarded to the client. Views are an exception, because
    their shards' cursors are on the underlying collection.
    """

    __slots__ = (
        "_allows_partial_results",
        "_is_begun",
        "_merger",
        "_namespace",
        "_passed_on",
        "_sender",
        "at_cluster_time",
        "is_partial",
        "operation_time",
        "remotes",
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
        at_cluster_time: Timestamp | None = None,
        passed_on: tuple[bytes, ...] = AS_CLIENT,
    ) -> None:
        """Adopt the cursors that shards have opened.

        Args:
            namespace: ``db.collection`` for replies to the client.
            replies: the successful replies that opened the cursors, as many as ``merger`` has sources.
            allows_partial_results: whether to leave out a shard that becomes unreachable, rather than fail.
            is_partial: whether a shard has been left out already.
            at_cluster_time: the common read time of all shards, if one was chosen.
            passed_on: the fields that the shards' ``getMore`` commands get from the `GetMore`.

        Raises:
            RemoteProtocolError: a reply has no cursor, or documents without their sort keys.
        """
        self._sender = sender
        self._namespace = namespace
        self._merger = merger
        self._allows_partial_results = allows_partial_results
        self._passed_on = passed_on
        self._is_begun = False
        self.is_partial = is_partial
        self.at_cluster_time = at_cluster_time
        self.operation_time = latest_operation_time(replies)
        self.remotes: list[RemoteCursor] = []
        for number, reply in enumerate(replies):
            cursor = CursorReply.of(reply)
            self.remotes.append(RemoteCursor.opened(sender, reply, cursor))
            self.is_partial = self.is_partial or cursor.is_partial
            merger.feed(number, cursor.array(), is_exhausted=not cursor.cursor_id)

    @property
    def is_exhausted(self) -> bool:
        """See `Stage`."""
        return self._merger.is_done

    @property
    def held_bytes(self) -> int:
        """See `Stage`."""
        return self._merger.held_bytes

    @may_run_in_reactor
    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`. Without a batch size, the first batch has 101 documents, and the others what is available.

        Raises:
            ShareTooSmallError: the shards' shares of the result may not be all of it.
        """
        size = get_more.batch_size
        if self._is_begun:
            if size is None and self._merger.is_unbounded:
                found = await self._ready(get_more)
                assert isinstance(found, list)
                return found
            return await self._filled(get_more, Batch(size))
        self._is_begun = True
        documents = await self._filled(get_more, Batch(FIRST_BATCH_DOCUMENTS if size is None else size))
        self._merger.check_shares()
        return documents

    async def answer(self, get_more: GetMore) -> list[bytes] | bytes:
        """See `Stage`."""
        if get_more.batch_size is None and self._merger.is_unbounded:
            return await self._ready(get_more, forwards=True)
        return await self._filled(get_more, Batch(get_more.batch_size))

    @may_run_in_reactor
    async def _ready(self, get_more: GetMore, *, forwards: bool = False) -> list[bytes] | bytes:
        """Return the first available documents: the rest of started batches, or else a shard's batch.

        Args:
            forwards: whether to return a whole reply where possible.
        """
        batch = Batch(None)
        self._merger.fill(batch)
        while not batch.documents and (starving := self._merger.starving()):
            number = starving[0]
            for other in starving[1:]:
                await self._ask_ahead(get_more, other, None)
            is_forwarded = forwards and not self.is_partial and self.remotes[number].namespace == self._namespace
            relay = self._relay(get_more, number) if is_forwarded else None
            for _, cursor in await self._fetch(get_more, {number: None}, relay):
                is_whole_answer = is_forwarded and not cursor.is_empty
                documents = None if is_whole_answer else cursor.array()
                self._merger.feed(number, documents, is_exhausted=self.remotes[number].is_exhausted)
                if relay is not None and relay.digest:
                    return RELAYED
                if is_whole_answer:
                    cursor_id = 0 if self.is_exhausted else get_more.cursor_id
                    return cursor.with_cursor_id(cursor_id, get_more.request.message.request_id)
            self._merger.fill(batch)
        return batch.documents

    @may_run_in_reactor
    async def _ask_ahead(self, get_more: GetMore, number: int, batch_size: int | None) -> None:
        """Request a batch that will soon be needed in advance; errors are raised when it is read."""
        remote = self.remotes[number]
        if not remote.may_ask_ahead():
            return
        await in_own_task()
        with suppress(CommandError):
            elements = raw_elements(get_more.request, self._passed_on)
            await remote.ask_ahead(remote.get_more_frame(batch_size, elements))

    def _relay(self, get_more: GetMore, number: int) -> BatchRelay | None:
        if not self.remotes[number].is_plain:
            return None
        others_are_exhausted = all(remote.is_exhausted for other, remote in enumerate(self.remotes) if other != number)
        return relay_for(get_more, self._sender.signer, is_last=others_are_exhausted)

    @may_run_in_reactor
    async def _filled(self, get_more: GetMore, batch: Batch) -> list[bytes]:
        """Fill a batch until it is full or there are no more documents, fetching from shards as needed."""
        while True:
            self._merger.fill(batch)
            client = get_more.client or cast("ClientConnection | None", SERVED_CLIENT.get())
            if client is not None and client.reserved_bytes:
                client.unread_replies.reservations.settle(client, self._merger.held_bytes + batch.size)
            if batch.is_full or self._merger.is_done:
                return batch.documents
            starving = self._merger.starving()
            if not starving:
                return batch.documents  # the next document is available, but does not fit into the batch
            wanted = self._merger.wanted(batch)
            sizes = {number: self.remotes[number].merged_batch_size(wanted) for number in starving}
            for number, cursor in await self._fetch(get_more, sizes):
                remote = self.remotes[number]
                remote.note_merged_batch(sizes[number], len(cursor.frame))
                self._merger.feed(number, cursor.array(), is_exhausted=remote.is_exhausted)
                # Even if all shards return as much as this one, more is needed.
                is_more_needed = wanted is None or wanted > sizes[number] * len(self.remotes)
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
            remote = self.remotes[number]
            try:
                reply = await remote.exchange(remote.get_more_frame(batch_size, elements), relay)
                replies[number] = remote.received(reply)
            except CommandError as error:
                failures[number] = error
            else:
                self.operation_time = max(self.operation_time, reply.operation_time)

        async with trio.open_nursery() as nursery:
            for number, batch_size in batch_sizes.items():
                nursery.start_soon(fetch, number, batch_size)
        for number, error in failures.items():
            if not (self._allows_partial_results and has_category(error.code, Category.NETWORK)):
                raise error
            self.is_partial = True
            self.remotes[number].id = 0
            self._merger.feed(number, None, is_exhausted=True)
        return sorted(replies.items())
