"""``hello``: its client metadata, and the fields with the same meaning on every MongoDB server. No waiting.

The client metadata is validated and kept for the lifetime of the connection; a second one is refused.

A driver that uses the streaming protocol sends the newest ``topologyVersion`` it has seen, and a limit for the wait for
a newer one. `parse_hello` parses and checks the request. `await_budget_ms` decides whether to answer at once.

Codes, messages and limits are mongod 6.0.5's, or mongos 6.0's where they differ (`Assertions`, `MONGOS_BYTES_MAX`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bson import Int64, ObjectId

from shardwright.wire import rawbson
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field, unknown_field, wrong_type
from shardwright.wire.rawbson import Span, type_name

MONGOD_BYTES_MAX: Final = 1024
MONGOS_BYTES_MAX: Final = 512
APP_NAME_BYTES_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """Checked client metadata.

    Attributes:
        document: the raw document, which ``currentOp`` shows and which may be forwarded.
        app_name: ``application.name``, or "".
    """

    document: bytes
    app_name: str
    driver: str


def parse_client_metadata(body: bytes, span: Span, *, bytes_max: int = MONGOD_BYTES_MAX) -> ClientMetadata:
    """Parse the metadata in the ``client`` field of a ``hello`` body.

    Raises:
        CommandError: TypeMismatch (14), ClientMetadataMissingField (183), ClientMetadataAppNameTooLarge (184) or
            ClientMetadataDocumentTooLarge (185).
        InvalidBSONError: the document is malformed.
    """
    if span[0] not in (rawbson.OBJECT, rawbson.ARRAY):
        raise CommandError(ErrorCode.TypeMismatch, "The client metadata document must be a document")
    document = body[span[2] : span[3]]
    if len(document) > bytes_max:
        raise CommandError(
            ErrorCode.ClientMetadataDocumentTooLarge,
            f"The client metadata document must be less then or equal to {bytes_max}bytes",
        )
    app_name, driver, has_os = "", "", False
    for name, field in rawbson.spans(document):
        if name == b"application":
            app_name = _parse_application(document, _sub_document(document, "application", field))
        elif name == b"driver":
            fields = _sub_document(document, "driver", field)
            driver = f"{_string(document, fields, 'driver.name')} {_string(document, fields, 'driver.version')}"
        elif name == b"os":
            _string(document, _sub_document(document, "os", field), "os.type")
            has_os = True
    for name_required, is_present in (("driver", bool(driver)), ("os", has_os)):
        if not is_present:
            raise CommandError(
                ErrorCode.ClientMetadataMissingField,
                f"Missing required sub-document '{name_required}' in the client metadata document",
            )
    return ClientMetadata(document, app_name, driver)


def _sub_document(document: bytes, name: str, span: Span) -> dict[bytes, Span]:
    if span[0] not in (rawbson.OBJECT, rawbson.ARRAY):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"The '{name}' field is required to be a BSON document in the client metadata document",
        )
    return rawbson.index(document, span[2])


def _parse_application(document: bytes, fields: dict[bytes, Span]) -> str:
    if b"name" not in fields:
        return ""
    app_name = _string(document, fields, "application.name")
    if len(app_name.encode()) > APP_NAME_BYTES_MAX:
        raise CommandError(
            ErrorCode.ClientMetadataAppNameTooLarge,
            f"The 'application.name' field must be less then or equal to {APP_NAME_BYTES_MAX} bytes in the client "
            "metadata document",
        )
    return app_name


def _string(document: bytes, fields: dict[bytes, Span], path: str) -> str:
    span = fields.get(path.partition(".")[2].encode())
    if span is None:
        raise CommandError(
            ErrorCode.ClientMetadataMissingField,
            f"Missing required field '{path}' in the client metadata document",
        )
    if span[0] != rawbson.STRING:
        raise CommandError(
            ErrorCode.TypeMismatch, f"The '{path}' field must be a string in the client metadata document"
        )
    return document[span[2] + 4 : span[3] - 1].decode(errors="replace")


MIN_WIRE_VERSION: Final = 0
MAX_WIRE_VERSION: Final = 17
"""Wire version of MongoDB 6.0."""

HELLO_NAMES: Final = frozenset({"hello", "isMaster", "ismaster"})
"""The command and its legacy spellings, which answer ``ismaster`` instead of ``isWritablePrimary``."""


@dataclass(frozen=True, slots=True)
class Assertions:
    """Assertion codes and messages that differ between mongod and mongos."""

    both_or_neither: int
    negative_counter: int
    counter_ahead: int
    exhaust_without_wait: int
    exhaust_command: str
    server: str


MONGOD: Final = Assertions(
    both_or_neither=31368,
    negative_counter=31372,
    counter_ahead=31382,
    exhaust_without_wait=51756,
    exhaust_command="An isMaster or hello request",
    server="server",
)
MONGOS: Final = Assertions(
    both_or_neither=51760,
    negative_counter=51758,
    counter_ahead=51761,
    exhaust_without_wait=51763,
    exhaust_command="A hello/isMaster request",
    server="mongos",
)


@dataclass(frozen=True, slots=True)
class TopologyVersion:
    """State of a server's topology: the process, and a counter of changes within it."""

    process_id: ObjectId
    counter: int

    def bumped(self) -> "TopologyVersion":
        """Return the version after one more change."""
        return replace(self, counter=self.counter + 1)

    def document(self) -> dict[str, Any]:
        """Build the document for replies."""
        return {"processId": self.process_id, "counter": Int64(self.counter)}


@dataclass(frozen=True, slots=True)
class HelloRequest:
    """The fields of a ``hello`` with the same meaning on every server.

    Attributes:
        topology_version: the newest that the client has seen, or None if it does not wait.
        max_await_ms: limit of the wait for a newer one; present exactly if ``topology_version`` is.
        exhaust_allowed: the client accepts further replies without sending requests (OP_MSG ``exhaustAllowed``).
        compression: the client's compressors in its order of preference, or None if it does not negotiate.
    """

    topology_version: TopologyVersion | None
    max_await_ms: int | None
    exhaust_allowed: bool
    hello_ok: bool
    compression: tuple[str, ...] | None

    def following(self, answered: TopologyVersion) -> "HelloRequest":
        """Return the request with which an exhaust stream continues after sending ``answered``."""
        return replace(self, topology_version=answered)


def parse_hello(
    body: bytes, fields: Mapping[bytes, Span], *, exhaust_allowed: bool = False, assertions: Assertions = MONGOD
) -> HelloRequest:
    """Parse a ``hello`` from its command body and the index of its top-level fields (`wire.rawbson.index`).

    Raises:
        CommandError: TypeMismatch (14), a missing or unknown field of ``topologyVersion`` (40414, 40415), a negative
            number (51024 and ``negative_counter``), or fields that must come together (``both_or_neither``,
            ``exhaust_without_wait``).
        InvalidBSONError: a nested document is malformed.
    """
    arguments = Arguments(body, "hello", fields)
    topology_version = _parse_topology_version(body, fields.get(b"topologyVersion"))
    max_await_ms = arguments.maybe_integer(b"maxAwaitTimeMS")
    hello_ok = arguments.boolean(b"helloOk")
    compression = _parse_compression(body, fields.get(b"compression"))
    if topology_version is None and max_await_ms is not None:
        raise CommandError(
            assertions.both_or_neither, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"
        )
    if topology_version is not None and max_await_ms is None:
        raise CommandError(
            assertions.both_or_neither, "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'"
        )
    if topology_version is not None and topology_version.counter < 0:
        raise CommandError(assertions.negative_counter, "topologyVersion must have a non-negative counter")
    if exhaust_allowed and max_await_ms is None:
        raise CommandError(
            assertions.exhaust_without_wait, f"{assertions.exhaust_command} with exhaust must specify 'maxAwaitTimeMS'"
        )
    return HelloRequest(
        topology_version=topology_version,
        max_await_ms=max_await_ms,
        exhaust_allowed=exhaust_allowed,
        hello_ok=hello_ok,
        compression=compression,
    )


def await_budget_ms(request: HelloRequest, current: TopologyVersion, *, assertions: Assertions = MONGOD) -> int | None:
    """Return the milliseconds to wait for a topology change before answering; None to answer at once.

    A client that has seen another process or an older counter is answered at once; an up-to-date client waits.

    Raises:
        CommandError: ``counter_ahead``, the client names a version of this process that does not exist yet.
    """
    known = request.topology_version
    if known is None or known.process_id != current.process_id or known.counter < current.counter:
        return None
    if known.counter > current.counter:
        raise CommandError(
            assertions.counter_ahead,
            f"Received a topology version with counter: {known.counter} which is greater than the "
            f"{assertions.server} topology version counter: {current.counter}",
        )
    return request.max_await_ms


def _parse_topology_version(body: bytes, span: Span | None) -> TopologyVersion | None:
    if span is None or span[0] == rawbson.NULL:
        return None
    _check_type("topologyVersion", span, rawbson.OBJECT)
    fields = rawbson.index(body, span[2])
    for name in fields:
        if name not in (b"processId", b"counter"):
            raise unknown_field(f"hello.topologyVersion.{name.decode(errors='replace')}")
    for required, kind in (("processId", rawbson.OBJECT_ID), ("counter", rawbson.INT64)):
        field = fields.get(required.encode())
        if field is None:
            raise missing_field(f"hello.topologyVersion.{required}")
        _check_type(f"topologyVersion.{required}", field, kind)
    return TopologyVersion(
        rawbson.decode_value(body, fields[b"processId"]), int(rawbson.decode_value(body, fields[b"counter"]))
    )


def _parse_compression(body: bytes, span: Span | None) -> tuple[str, ...] | None:
    if span is None or span[0] == rawbson.NULL:
        return None
    _check_type("compression", span, rawbson.ARRAY)
    names: list[str] = []
    for position, element in rawbson.spans(body, span[2]):
        _check_type(f"compression.{position.decode(errors='replace')}", element, rawbson.STRING)
        names.append(body[element[2] + 4 : element[3] - 1].decode(errors="replace"))
    return tuple(names)


def _check_type(name: str, span: Span, kind: int) -> None:
    if span[0] != kind:
        raise wrong_type(f"hello.{name}", span[0], type_name(kind))
