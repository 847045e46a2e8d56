"""Spans of operations, exported to a collector over OTLP; only if an option asks for them.

OpenTelemetry's SDK is an extra (``shardwright[otel]``), imported when `Tracing` is created. Parents are passed as
arguments and never taken from context variables, which the reactor's callbacks do not have. A thread of the SDK encodes
and sends finished spans. Its queue is bounded, so a collector that is away costs spans and never operations.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from time import time
from typing import TYPE_CHECKING, Any, Final, Self

import trio
from prometheus_client.samples import Exemplar

from shardwright.daemon.logs import silence
from shardwright.daemon.operation_metrics import OK, OperationMetrics
from shardwright.daemon.version import package_version
from shardwright.wire.logger import get_logger
from shardwright.wire.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, SpanKind

logger = get_logger("daemon.tracing")

ENDPOINT_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's own variable for the collector."""

_PACKAGE: Final = "opentelemetry.exporter.otlp"
_TRACES_PATH: Final = "/v1/traces"

FLUSH_SECONDS: Final = 3.0
"""Maximum time at the end of the process for the last spans."""

Attributes = Mapping[str, str | int | Sequence[str]]


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """The destination of spans, and the choice of operations.

    Attributes:
        endpoint: URL of the collector, without the path of a signal.
        instance: the address of this process.
        sample_ratio: share to trace of the operations whose clients do not name a trace.
    """

    endpoint: str
    instance: str
    sample_ratio: float = 0.0

    @classmethod
    def of(cls, parsed: argparse.Namespace, instance: str) -> Self | None:
        """Read the options of a command line and the environment; None if tracing is off.

        OpenTelemetry's variable may be set for all programs of a machine, so it does nothing without the extra.

        Raises:
            ValueError: they do not fit together, or the extra is not installed.
        """
        sample_ratio = getattr(parsed, "trace_sample_ratio", 0.0)
        endpoint = parsed.otlp_endpoint
        if endpoint is None and _is_installed():
            endpoint = os.environ.get(ENDPOINT_VARIABLE)
        if not endpoint:
            if sample_ratio:
                raise ValueError("--trace-sample-ratio needs --otlp-endpoint")
            return None
        if not _is_installed():
            raise ValueError("--otlp-endpoint needs OpenTelemetry: pip install 'shardwright[otel]'")
        return cls(endpoint, instance, sample_ratio)


def check_tracing(parsed: argparse.Namespace) -> None:
    """Refuse options of tracing that do not fit together, with ValueError."""
    TracingOptions.of(parsed, "")


def _is_installed() -> bool:
    try:
        return find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


class OperationSpan(TraceContext):
    """A recorded span that has begun."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: "Tracing", span: "Span") -> None:
        identity = span.get_span_context()
        super().__init__(f"{identity.trace_id:032x}", f"{identity.span_id:016x}", is_sampled=True)
        self._tracing = tracing
        self._span = span

    def request(self, name: str, attributes: Attributes) -> "OperationSpan":
        """Begin the span of a request to another server, a child of this one."""
        return self._tracing.begin(name, attributes, self, is_request=True)

    def end(self, outcome: str = OK, code: int = 0, attributes: Attributes | None = None) -> None:
        """End the span.

        Args:
            outcome: ``ok``, or the name of the error.
            code: the code of the error; 0 if it has none.
        """
        span = self._span
        if attributes:
            span.set_attributes(attributes)
        if outcome != OK:
            span.set_attribute("error.type", outcome)
            if code:
                span.set_attribute("db.response.status_code", str(code))
            span.set_status(self._tracing.error)
        span.end()


class Tracing:
    """The tracer of one process.

    Args:
        service: the name of the program.
        exemplars_of: receives the traces of durations.

    Attributes:
        error: the status of failed spans.
    """

    def __init__(
        self, service: str, options: TracingOptions, exemplars_of: OperationMetrics, random: Random | None = None
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._trace = trace
        self._sample_ratio = options.sample_ratio
        self._random = random or Random()
        self._exemplars_of = exemplars_of
        self.error = trace.Status(trace.StatusCode.ERROR)
        described = {"service.version": package_version(), "service.instance.id": options.instance}
        resource = Resource.create({"service.name": service, **described})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(options.endpoint)))
        self._tracer = self._provider.get_tracer("shardwright", package_version())

    @property
    def samples(self) -> bool:
        """Whether some operations without a trace of their client are traced."""
        return self._sample_ratio > 0

    def draw(self) -> bool:
        """Decide whether to trace an operation without a trace of its client."""
        return self._random.random() < self._sample_ratio

    def begin(
        self, name: str, attributes: Attributes, parent: TraceContext | None, *, is_request: bool = False
    ) -> OperationSpan:
        """Begin a span, in a new trace without a parent.

        Args:
            is_request: whether it is a request to another server, rather than an operation of this one.
        """
        trace = self._trace
        context: Any = None
        if parent is not None:
            sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            identity = trace.SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), not is_request, sampled)
            context = trace.set_span_in_context(trace.NonRecordingSpan(identity))
        kind: SpanKind = trace.SpanKind.CLIENT if is_request else trace.SpanKind.SERVER
        return OperationSpan(self, self._tracer.start_span(name, context, kind, attributes))

    def note_duration(self, command: str, seconds: float, span: TraceContext) -> None:
        """Show a span as the exemplar of the duration of its command."""
        self._exemplars_of.note_exemplar(command, exemplar_of(span, seconds))

    def flush(self) -> None:
        """Send all finished spans now; blocks."""
        self._provider.force_flush()

    def shut_down(self) -> None:
        """Send the last spans and end the thread; blocks until the exporter has succeeded or given up."""
        self._provider.shutdown()

    async def run(self) -> None:
        """Wait until cancelled, then send the last spans within `FLUSH_SECONDS`."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(FLUSH_SECONDS, shield=True) as flushing:
                await trio.to_thread.run_sync(self.shut_down, abandon_on_cancel=True)
            if flushing.cancelled_caught:
                logger.warning("Could not export the last spans in time", seconds=FLUSH_SECONDS)


def exemplar_of(span: TraceContext, seconds: float) -> Exemplar:
    """Return the exemplar of a traced operation that ends now."""
    return Exemplar({"trace_id": span.trace_id, "span_id": span.span_id}, seconds, time())


def _exporter(endpoint: str) -> Any:  # noqa: ANN401 - a class of an optional package
    """Create the exporter, which logs the first failure and the recovery. The SDK would log each attempt."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Exporter(OTLPSpanExporter):
        """The exporter of this process; `export` is called by one thread of the SDK."""

        is_failing = False

        def export(self, spans: "Sequence[ReadableSpan]") -> SpanExportResult:
            """Send spans; they are lost if that fails for some seconds."""
            result = super().export(spans)
            has_failed = result is not SpanExportResult.SUCCESS
            if has_failed and not self.is_failing:
                logger.warning("Could not export spans; more failures are not logged", endpoint=endpoint)
            elif self.is_failing and not has_failed:
                logger.info("Spans are exported again", endpoint=endpoint)
            self.is_failing = has_failed
            return result

    silence("opentelemetry")
    return Exporter(endpoint.rstrip("/") + _TRACES_PATH)


def operation_attributes(command: str, db: str, collection: str | None) -> dict[str, str]:
    """Return the attributes of OpenTelemetry's conventions for databases."""
    return {
        "db.system.name": "mongodb",
        "db.operation.name": command,
        "db.namespace": db,
        **({"db.collection.name": collection} if collection else {}),
    }
