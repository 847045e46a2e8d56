"""Sending requests to shards: to the member that a read preference selects, or to a member with a cursor.

A `PendingReply` is the outstanding reply to a sent request.
"""

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import bson
import trio

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.routing.shards import Shard, ShardRegistry
from shardwright.router.sending.shard_counts import UNREACHABLE, ShardCounts
from shardwright.sharding.clock import VectorClock, with_cluster_time
from shardwright.sharding.cluster_time import TimeSigner
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.transport.pool import Asked, ConnectionPools
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reply_memory import Relay, RelayedClient

_ATTEMPTS_MAX: Final = 3
"""Total attempts of a repeatable request on one shard (MongoDB's ``kMaxNumRetries``)."""

_WRITE_CONCERN_ERROR: Final = b"writeConcernError"


class DigestRelay(Relay):
    """A relay that leaves a digest: a short reply with the fields of the relayed one that the router needs.

    The digest is empty while nothing has been relayed.
    """

    def __init__(self, client: RelayedClient) -> None:
        super().__init__(client)
        self.digest = b""


class PendingReply:
    """A pending reply. The caller must call `receive`, `receive_unless_lost` or `give_up`."""

    __slots__ = ("_address", "_asked", "_clock", "_counts", "_request_bytes", "_shard", "_started")

    def __init__(
        self, shard: Shard, address: str, asked: Asked, clock: VectorClock, counts: ShardCounts, request_bytes: int
    ) -> None:
        self._shard = shard
        self._address = address
        self._asked = asked
        self._clock = clock
        self._counts = counts
        self._request_bytes = request_bytes
        self._started = perf_counter()

    @may_run_in_reactor
    async def receive(self, relay: DigestRelay | None = None) -> ShardReply:
        """Receive the reply, or its digest if ``relay`` has relayed a long one.

        Raises:
            CommandError: HostUnreachable.
        """
        try:
            answer = await self._asked.receive_answer(relay)
        except BackendError as error:
            self._shard.client.on_failure(self._address, error)
            self._counts.note_error(self._shard.id, UNREACHABLE)
            raise unreachable(self._shard.id, error) from error
        if answer is None:
            assert relay is not None
            answer = relay.digest
        reply = ShardReply(self._shard.id, self._address, answer)
        self._counts.note_reply(reply, self._request_bytes, self._started)
        reply.tell(self._clock)
        return reply

    @may_run_in_reactor
    async def receive_unless_lost(self) -> ShardReply | None:
        """Receive the reply; None if the request may be repeated because the member is gone or not primary."""
        try:
            reply = await self.receive()
        except CommandError as error:
            if not isinstance(error.__cause__, BackendError):
                raise
            return None
        if reply.error is not None and has_category(reply.error.code, Category.NOT_PRIMARY):
            self._shard.client.on_failure(self._address, reply.error)
            return None
        return reply

    async def wait_begun(self) -> None:
        """Wait until the reply begins to arrive; may be cancelled and repeated."""
        await self._asked.wait_begun()

    def give_up(self) -> None:
        """Abandon the reply."""
        self._asked.give_up()


def unreachable(shard_id: str, error: BackendError) -> CommandError:
    """Build the error for a shard that could not be reached."""
    return CommandError(ErrorCode.HostUnreachable, f"Error contacting shard {shard_id} :: caused by :: {error}")


class ShardSender:
    """Sender of requests to shards; it advances the clock to the times in their replies.

    Args:
        pools_as_router: connections to genuine shards that identify this router as a mongos.

    Attributes:
        clock: the newest times seen in the cluster, added to requests without a ``$clusterTime``.
        signer: signs the times in replies that are relayed to clients.
    """

    def __init__(
        self,
        shards: ShardRegistry,
        pools: ConnectionPools,
        clock: VectorClock,
        signer: TimeSigner,
        pools_as_router: ConnectionPools,
        counts: ShardCounts | None = None,
    ) -> None:
        self._shards = shards
        self._pools = pools
        self._pools_as_router = pools_as_router
        self._counts = counts or ShardCounts()
        self._expected: dict[str, tuple[str, Asked]] = {}
        self.clock = clock
        self.signer = signer

    def expecting(self, expected: dict[str, tuple[str, Asked]]) -> "ShardSender":
        """Create a sender for an operation whose first requests to some shards were already sent.

        For the first request to such a shard, the sender receives the reply to the earlier one instead of sending.

        Args:
            expected: by shard, the address of the member that received the earlier request, and the request.
        """
        sender = ShardSender(*self.parts)
        sender._expected = expected
        return sender

    @property
    def parts(self) -> tuple[ShardRegistry, ConnectionPools, VectorClock, TimeSigner, ConnectionPools, ShardCounts]:
        """The arguments for another sender to the same shards."""
        return self._shards, self._pools, self.clock, self.signer, self._pools_as_router, self._counts

    @may_run_in_reactor
    async def send(
        self,
        shard_id: str,
        frame: bytes,
        *,
        preference: ReadPreference = PRIMARY,
        may_repeat: bool = False,
        as_router: bool = False,
        sources: tuple[str, ...] = (),
    ) -> ShardReply:
        """Send a request to a member of a shard and read its reply.

        If the host is gone or not primary any more, a request is sent up to three times, unless it may have been
        executed and must not be repeated. A request that `may_repeat` is also sent again if such an error ended the
        wait for its write concern. mongos does this, and drivers repeat only once.

        Args:
            may_repeat: executing the request twice has the effect of executing it once (reads, retryable writes).
            as_router: a genuine shard has to treat this router as a mongos; the request then has a read and a write
                concern.
            sources: the hosts whose cursors the member reads for the request; it fails if one of them becomes silent.

        Raises:
            CommandError: ShardNotFound; FailedToSatisfyReadPreference; HostUnreachable, the shard could not be reached.
        """
        shard = self._shards.get_known(shard_id) or await self._shards.get(shard_id)
        client = shard.client
        frame = with_cluster_time(frame, self.clock)
        pools = self._pools_as_router if as_router else self._pools
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            expected = self._expected.pop(shard_id, None)
            address = client.monitor.select(preference) if expected is None else expected[0]
            if address is None:
                await in_own_task()
                client = (await self._shards.get_current(shard_id)).client
                address = await client.select(preference)
            started = perf_counter()
            try:
                if expected is not None:
                    reply = ShardReply(shard_id, address, await expected[1].receive_whole())
                elif not sources:
                    reply = ShardReply(shard_id, address, await pools[address].exchange(frame))
                else:
                    asked = await pools[address].ask(frame)
                    asked.reads_from(self._pools[source] for source in sources)
                    reply = ShardReply(shard_id, address, await asked.receive_whole())
                    reply.sources = sources
            except BackendError as error:
                client.on_failure(address, error)
                self._counts.note_error(shard_id, UNREACHABLE)
                if attempts_left and (may_repeat or not error.sent):
                    continue
                raise unreachable(shard_id, error) from error
            self._counts.note_reply(reply, len(frame), started)
            reply.tell(self.clock)
            if reply.error is not None and has_category(reply.error.code, Category.NOT_PRIMARY):
                client.on_failure(address, reply.error)
                if attempts_left and may_repeat:
                    continue
            elif may_repeat and reply.has(_WRITE_CONCERN_ERROR):
                interruption = _interruption_of_wait(reply)
                if interruption is not None:
                    client.on_failure(address, interruption)
                    if attempts_left:
                        continue
            return reply
        raise AssertionError("unreachable")

    @may_run_in_reactor
    async def send_to_all(
        self, frames: Mapping[str, bytes], replies: dict[str, ShardReply], *, preference: ReadPreference = PRIMARY
    ) -> None:
        """Send repeatable requests to several shards, each to one member, and read all replies.

        All are sent before the first reply is read, so a request needs a task of its own only if it has to be repeated.
        ``replies`` receives a failed reply for a shard that could not be reached.
        """
        asked: dict[str, PendingReply] = {}
        try:
            for shard_id, frame in frames.items():
                pending = await self._ask_known(shard_id, frame, preference)
                if pending is not None:
                    asked[shard_id] = pending
            for shard_id in tuple(asked):
                reply = await asked.pop(shard_id).receive_unless_lost()
                if reply is not None:
                    replies[shard_id] = reply
        finally:
            for pending in asked.values():
                pending.give_up()
        missing = {shard_id: frame for shard_id, frame in frames.items() if shard_id not in replies}
        if missing:
            await self.send_each(missing, replies, preference)

    @may_run_in_reactor
    async def send_each(
        self, frames: Mapping[str, bytes], replies: dict[str, ShardReply], preference: ReadPreference
    ) -> None:
        """Do the same as `send_to_all` with a task for each request, which `send` sends."""
        await in_own_task()
        async with trio.open_nursery() as nursery:
            for shard_id, frame in frames.items():
                nursery.start_soon(self.send_into, replies, shard_id, frame, preference)

    async def send_into(
        self,
        replies: dict[str, ShardReply],
        shard_id: str,
        frame: bytes,
        preference: ReadPreference,
        may_repeat: bool = True,
    ) -> None:
        """Send a request, and store the reply or a failed one in ``replies``; see `send`."""
        try:
            replies[shard_id] = await self.send(shard_id, frame, preference=preference, may_repeat=may_repeat)
        except CommandError as error:
            replies[shard_id] = ShardReply.failed(shard_id, error)

    @may_run_in_reactor
    async def _ask_known(self, shard_id: str, frame: bytes, preference: ReadPreference) -> PendingReply | None:
        """Send a request to a known suitable member; None if there is none, or it could not be sent."""
        shard = self._shards.get_known(shard_id)
        if shard is None:
            return None
        frame = with_cluster_time(frame, self.clock)
        expected = self._expected.pop(shard_id, None)
        if expected is not None:
            return PendingReply(shard, *expected, self.clock, self._counts, len(frame))
        address = shard.client.monitor.select(preference)
        if address is None:
            return None
        try:
            return PendingReply(
                shard, address, await shard.client.ask(address, frame), self.clock, self._counts, len(frame)
            )
        except BackendError:
            return None

    async def command(
        self, shard_id: str, db: str, command: Mapping[str, Any], *, may_repeat: bool = False
    ) -> dict[str, Any]:
        """Run a command given as a dict on a shard's primary; returns the decoded reply.

        Raises:
            StaleRoutingError: the shard refused the versions in it.
            CommandError: it failed, or the shard could not be reached.
        """
        elements = {**command, **self.clock.gossip(), "$db": db}
        frame = op_msg(bson.encode(elements), request_id=next_request_id())
        reply = await self.send(shard_id, frame, may_repeat=may_repeat)
        reply.raise_for_error()
        return reply.document

    async def ask(self, shard_id: str, address: str, frame: bytes, sources: tuple[str, ...] = ()) -> PendingReply:
        """Send a cursor's request to the member that has the cursor; the reply is read later. ``sources`` as in `send`.

        Raises:
            CommandError: HostUnreachable; ShardNotFound, there has never been such a shard.
        """
        shard = self._shards.get_known(shard_id) or await self._shards.get_with_removed(shard_id)
        frame = with_cluster_time(frame, self.clock)
        try:
            asked = await shard.client.ask(address, frame)
        except BackendError as error:
            self._counts.note_error(shard_id, UNREACHABLE)
            raise unreachable(shard_id, error) from error
        if sources:
            asked.reads_from(self._pools[source] for source in sources)
        return PendingReply(shard, address, asked, self.clock, self._counts, len(frame))

    def pending(self, shard_id: str, address: str, asked: Asked, request_bytes: int) -> PendingReply:
        """Return the pending reply to a request that was sent to a member of a shard, which may be removed since."""
        shard = self._shards.find_with_removed(shard_id)
        assert shard is not None
        return PendingReply(shard, address, asked, self.clock, self._counts, request_bytes)

    def may_ask_ahead(self, shard_id: str, address: str) -> bool:
        """Whether a reply may occupy a connection to a member until it is read, which can take long."""
        shard = self._shards.get_known(shard_id)
        return shard is not None and shard.client.has_spare_connections(address)

    async def exchange(self, address: str, frame: bytes) -> bytes:
        """Send a request to a server, even if it is not a known member any more; returns the raw reply."""
        return await self._pools[address].exchange(with_cluster_time(frame, self.clock))


def _interruption_of_wait(reply: ShardReply) -> CommandError | None:
    """Return the error that ended the wait for a write concern, if the next primary may satisfy it."""
    error = reply.get(_WRITE_CONCERN_ERROR)
    if not isinstance(error, dict) or not has_category(error.get("code", 0), Category.RETRYABLE):
        return None
    return CommandError(error["code"], str(error.get("errmsg", "")))
