"""The pending reply to a request that was sent to a member of a shard."""

from time import perf_counter

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.routing.shards import Shard
from shardwright.router.sending.shard_counts import UNREACHABLE, ShardCounts
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.pool import Asked
from shardwright.wire.transport.relay import Relay
from shardwright.wire.transport.request_loop import may_run_in_reactor
from shardwright.wire.transport.reservations import Receiver


class DigestRelay(Relay):
    """A relay that leaves a digest: a short reply with the fields of the relayed one that the router needs.

    The digest is empty while nothing has been relayed.
    """

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver)
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
