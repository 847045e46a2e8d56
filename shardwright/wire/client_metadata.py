"""The ``client`` document of a connection's first ``hello``, which identifies the client.

MongoDB validates it, keeps it for the lifetime of the connection and refuses a second one. Codes, messages and limits
are those of mongod 6.0.5; a mongos accepts only half the length.
"""

from dataclasses import dataclass
from typing import Final

from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import Span

MONGOD_BYTES_MAX: Final = 1024
MONGOS_BYTES_MAX: Final = 512
APP_NAME_BYTES_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """Checked client metadata.

    Attributes:
        document: the raw document, which ``currentOp`` shows and which may be passed on.
        app_name: ``application.name``, or "".
        driver: the driver's name and version in one string, for log lines.
    """

    document: bytes
    app_name: str
    driver: str


def parse_client_metadata(body: bytes, span: Span, *, bytes_max: int = MONGOD_BYTES_MAX) -> ClientMetadata:
    """The metadata in the ``client`` field of a ``hello`` body.

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
