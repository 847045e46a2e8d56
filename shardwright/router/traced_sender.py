"""A span for each request of a traced operation to a shard, which the shard's span continues."""

from collections.abc import Mapping

from shardwright.daemon.operation_metrics import OK
from shardwright.daemon.tracing import Attributes, OperationSpan, exemplar_of
from shardwright.router.operations.operation import CommandHandler, Operation
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import PendingReply, ShardSender
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import append
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.trace_context import TRACE_CONTEXT
from shardwright.wire.transport.reactor import may_run_in_reactor


def tracing_requests(handler: CommandHandler) -> CommandHandler:
    """Wrap a handler: the requests of traced operations to shards have spans."""

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        span = operation.client.trace
        if isinstance(span, OperationSpan):
            operation.sender = TracedSender(operation, span)
        return await handler(operation)

    return handle


class TracedSender(ShardSender):
    """A sender that wraps the sender of a traced operation.

    It sends the trace only to shards whose members all announce that they understand it. Requests of open cursors are
    not traced here: a cursor outlives the operation that has opened it.
    """

    def __init__(self, operation: Operation, span: OperationSpan) -> None:
        super().__init__(*operation.sender.parts)
        self._sender = operation.sender
        self._command = operation.request.name
        self._is_understood = operation.context.shards.is_understood_by_all
        self._span = span

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
        """Send a request, see `ShardSender.send`."""
        attributes = {"db.system.name": "mongodb", "db.operation.name": self._command, "shardwright.shard": shard_id}
        span = self._span.request(f"{self._command} {shard_id}", attributes)
        if self._is_understood(shard_id, TRACE_CONTEXT.decode()):
            message = OpMsg(frame)
            frame = message.frame_with(append(message.body, span.element))
        try:
            reply = await self._sender.send(
                shard_id, frame, preference=preference, may_repeat=may_repeat, as_router=as_router, sources=sources
            )
        except CommandError as error:
            span.end(error.code_name, error.code)
            raise
        except BaseException as failure:
            span.end(type(failure).__name__)
            raise
        self._counts.note_exemplar(shard_id, exemplar_of(span, reply.seconds))
        member = HostAndPort.parse(reply.address)
        server: Attributes = {"server.address": member.host, "server.port": member.port}
        refusal = reply.error
        span.end(OK if refusal is None else refusal.code_name, 0 if refusal is None else refusal.code, server)
        return reply

    @may_run_in_reactor
    async def send_to_all(
        self, frames: Mapping[str, bytes], replies: dict[str, ShardReply], *, preference: ReadPreference = PRIMARY
    ) -> None:
        """Send repeatable requests to several shards at once and read all replies, see `ShardSender.send_to_all`."""
        await self.send_each(frames, replies, preference)

    def may_ask_ahead(self, shard_id: str, address: str) -> bool:
        """See `ShardSender.may_ask_ahead`."""
        return self._sender.may_ask_ahead(shard_id, address)

    async def ask(self, shard_id: str, address: str, frame: bytes, sources: tuple[str, ...] = ()) -> PendingReply:
        """Send a cursor's request, see `ShardSender.ask`."""
        return await self._sender.ask(shard_id, address, frame, sources)
