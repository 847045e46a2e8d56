"""A collector of OpenTelemetry spans, as small as tests need it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS_MAX = 60


@dataclass(frozen=True)
class CollectedSpan:
    """A span, with its ids in hexadecimal digits."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    is_request: bool
    has_failed: bool
    attributes: dict[str, Any]


class Collector:
    """The spans that were received.

    Attributes:
        status: of the responses; anything but 200 refuses the spans.
    """

    def __init__(self) -> None:
        self.status = 200
        self.requests = 0
        self._spans: list[CollectedSpan] = []
        self._changed = Condition()

    def receive(self, body: bytes) -> int:
        """Handle a request; return the status of the response."""
        with self._changed:
            self.requests += 1
            if self.status == 200:
                self._spans += _spans(ExportTraceServiceRequest.FromString(body))
            self._changed.notify_all()
            return self.status

    def wait(self, is_enough: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """Wait for spans, and return all of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_enough(self._spans), SECONDS_MAX), self._spans
            return list(self._spans)

    def wait_requests(self, number: int) -> None:
        """Wait until there were that many requests."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= number, SECONDS_MAX)

    def of_trace(self, trace_id: str, number: int) -> list[CollectedSpan]:
        """Wait for that many spans of a trace, and return them."""

        def chosen(spans: list[CollectedSpan]) -> list[CollectedSpan]:
            return [each for each in spans if each.trace_id == trace_id]

        return chosen(self.wait(lambda spans: len(chosen(spans)) >= number))


def _spans(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for resource in request.resource_spans:
        process = {each.key: _value(each.value) for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    process["service.name"],
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind == Span.SPAN_KIND_CLIENT,
                    span.status.code != 0,
                    {each.key: _value(each.value) for each in span.attributes},
                )


def _value(value: AnyValue) -> Any:  # noqa: ANN401 - an attribute can be of several types
    if value.HasField("array_value"):
        return [_value(each) for each in value.array_value.values]
    return value.int_value if value.HasField("int_value") else value.string_value


@contextmanager
def serving(collector: Collector, port: int = 0) -> Iterator[str]:
    """Serve a collector; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is the library's
            assert self.path == "/v1/traces"
            status = collector.receive(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
