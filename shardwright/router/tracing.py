"""Spans of the router's operations.

A traced operation takes the ordinary path: `TracedPassages` leaves the operations that are drawn to it, and learns none
whose client may name a trace. Without tracing the router has `Dispatcher` and `RouterPassages` instead, and nothing
here runs.
"""

from shardwright.daemon.operation_metrics import OK, outcome_of_reply
from shardwright.daemon.tracing import OperationSpan, Tracing, operation_attributes
from shardwright.router.batch_passages import AnyPassage
from shardwright.router.context.router_context import RouterContext
from shardwright.router.dispatcher import Dispatcher
from shardwright.router.operations.begun_operation import BegunOperation
from shardwright.router.operations.local_operations import request_namespace
from shardwright.router.operations.operation import ContinuedOn, Operation, PassedOn, RouterCommand
from shardwright.router.passages import RouterPassages
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.request import Request
from shardwright.wire.trace_context import COMMENT, COMMENT_OF_QUERY, client_trace
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import may_run_in_reactor


class TracedPassages(RouterPassages):
    """Passages of a router with tracing.

    Attributes:
        drawn: for clients whose next request was recognised and not begun, whether it is to be traced.
    """

    def __init__(self, context: RouterContext, tracing: Tracing, *, is_audited: bool) -> None:
        super().__init__(context, is_audited=is_audited)
        self.drawn: dict[int, bool] = {}
        self._draw = tracing.draw if tracing.samples else None

    def _begin(self, passage: AnyPassage, client: ClientConnection, received: bytes) -> BegunOperation | None:
        if self._draw is None:
            return super()._begin(passage, client, received)
        is_drawn = self._draw()
        begun = None if is_drawn else super()._begin(passage, client, received)
        if begun is None:
            self.drawn[client.id] = is_drawn
        return begun

    def learn(self, operation: Operation, entry: RouterCommand, passed_on: PassedOn | ContinuedOn) -> None:
        """Keep a passage, unless a request of that layout may name a trace; see `RouterPassages.learn`."""
        origin = operation.origin
        if COMMENT not in origin.fields and COMMENT_OF_QUERY not in origin.message.frame:
            super().learn(operation, entry, passed_on)


class TracedDispatcher(Dispatcher):
    """The dispatcher of a router with tracing."""

    def __init__(self, context: RouterContext) -> None:
        assert context.tracing is not None
        self._tracing = context.tracing
        super().__init__(context)

    def _new_passages(self, context: RouterContext, *, is_audited: bool) -> RouterPassages:
        passages = TracedPassages(context, self._tracing, is_audited=is_audited)
        self._drawn = passages.drawn
        return passages

    @may_run_in_reactor
    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """Run one command, in a span if it is traced; see `Dispatcher.handle`."""
        span = None if client.begun is not None else self._span_of(client, request)
        if span is None:
            return await super().handle(client, request)
        client.trace = span
        try:
            return await super().handle(client, request)
        finally:
            client.trace = None

    def _span_of(self, client: ClientConnection, request: Request) -> OperationSpan | None:
        """Begin the span of a request; None if it is not traced. A client's trace decides, otherwise the draw.

        Clients that have to log in cannot cause spans before.
        """
        is_drawn = self._drawn.pop(client.id, None)
        if self._context.access is not None and client.login.user is None:
            return None
        parent = client_trace(request)
        if parent is not None:
            if not parent.is_sampled:
                return None
        elif request.name in HELLO_NAMES or not (self._tracing.draw() if is_drawn is None else is_drawn):
            return None
        namespace = request_namespace(request)
        collection = namespace.removeprefix(f"{request.db}.") if "." in namespace else None
        attributes = operation_attributes(request.name, request.db, collection)
        return self._tracing.begin(f"{request.name} {namespace}", attributes, parent)

    def _record(
        self, operation: Operation, command: RouterCommand | None, outcome: str, code: int, answer: bytes | None
    ) -> float:
        seconds = super()._record(operation, command, outcome, code, answer)
        span = operation.client.trace
        if isinstance(span, OperationSpan):
            retries = {"shardwright.retries": operation.retries} if operation.retries else {}
            if outcome == OK:
                outcome, code = outcome_of_reply(answer)  # a shard's error is passed on as it came
            span.end(outcome, code, {"shardwright.shards": tuple(dict.fromkeys(operation.targeted)), **retries})
            self._tracing.note_duration(operation.request.name, seconds, span)
        return seconds

    def connection_closed(self, client: ClientConnection) -> None:
        """A client has gone."""
        self._drawn.pop(client.id, None)
        super().connection_closed(client)


def dispatcher_of(context: RouterContext) -> Dispatcher:
    """Create the dispatcher of a router, with tracing if it is on."""
    return Dispatcher(context) if context.tracing is None else TracedDispatcher(context)
