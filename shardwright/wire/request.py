"""A received command: the body is indexed once, everything else is decoded on demand.

An application sends the same few commands all the time, with different values. The positions of a document's elements
depend on their types, their names and the lengths that precede their values, but not on the values themselves. If all
those bytes equal an earlier command's, the fields are at the same positions. The bytes are compared at once, as one
long integer with the other bytes masked out. That takes a tenth of the time of a scan, and every operation would need
two scans, in the router and on the shard.

The update pipelines in a request, and the fields that logs and reports must not show, are located here too.

Names of databases and collections are checked by the rules of mongod 6.0.5, with its messages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, duplicate_field, missing_field, not_an_object, wrong_type
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    DOCUMENT_BYTES_MIN,
    NULL,
    OBJECT,
    STRING,
    InvalidBSONError,
    Span,
    append,
    array_of_documents,
    deciding_bytes,
    decode_exactly,
    decode_value,
    depth_exceeds,
    element,
    encode_elements,
    find,
    from_elements,
    index,
    spans,
    type_name,
    without,
    without_spans,
)

DATABASE_NAME_BYTES_MAX: Final = 63
"""Longest database name, in UTF-8."""

_INVALID_IN_DATABASE_NAME: Final = frozenset('/\\ "')

_BEGINNING_BYTES: Final = 24
"""Length of the prefix that finds a layout: the command's length, its name, and part of the collection's name."""

BYTES_MAX: Final = 1_024
"""Longest command with a layout. Longer ones gain less from it, and their layouts would use more memory."""

_FIELDS_MAX: Final = 40
_LAYOUTS_MAX: Final = 2_048

_LENGTH_BYTES: Final = 4
"""Size of the length at the beginning of a document."""


def is_valid_database_name(db: str) -> bool:
    """Whether mongod would create a database of this name."""
    if not db or "." in db or "\0" in db or not _INVALID_IN_DATABASE_NAME.isdisjoint(db):
        return False
    return len(db) <= DATABASE_NAME_BYTES_MAX and (db.isascii() or len(db.encode()) <= DATABASE_NAME_BYTES_MAX)


def check_database_name(db: str) -> None:
    """Raise InvalidNamespace for an invalid ``$db``."""
    if is_valid_database_name(db):
        return
    if "." in db:
        raise _invalid(f"'.' is an invalid character in the database name: {db}")
    if "\0" in db:
        raise _invalid("namespaces cannot have embedded null characters")
    raise _invalid(f"Invalid database name: '{db}'")


def name_text(raw: bytes) -> str:
    """Decode the name of a database or collection; raise InvalidNamespace if it is not UTF-8.

    MongoDB allows any bytes but NUL. A lossy decoding would name another database or collection.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _invalid(f"Invalid namespace specified '{raw.decode(errors='backslashreplace')}': not UTF-8") from None


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidNamespace, message)


class CommandLayout:
    """Field positions shared by similar commands.

    ``fields`` are the spans of the top-level elements, by name.
    """

    __slots__ = ("_length", "_mask", "_masked", "db", "fields", "name")

    def __init__(self, body: bytes, mask: int, fields: Mapping[bytes, Span], name: str, db: str) -> None:
        self._length = len(body)
        self._mask = mask
        self._masked = int.from_bytes(body, "little") & mask
        self.fields = fields
        self.name = name
        self.db = db

    def is_of(self, body: bytes) -> bool:
        """Whether a command has this layout."""
        return len(body) == self._length and int.from_bytes(body, "little") & self._mask == self._masked


class CommandLayouts:
    """The layouts of commands that are sent repeatedly."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, CommandLayout | None] = {}

    def find(self, body: bytes) -> CommandLayout | None:
        """Find the layout of a command, if it is known."""
        layout = self._layouts.get(body[:_BEGINNING_BYTES])
        return layout if layout is not None and layout.is_of(body) else None

    def learn(self, body: bytes, fields: Mapping[bytes, Span], name: str, db: str) -> None:
        """Record a well-formed command of unknown layout; the layout is kept from the second one with its prefix on.

        The first layout of a prefix is never replaced, so that alternating commands do not evict each other.
        """
        beginning = body[:_BEGINNING_BYTES]
        if beginning not in self._layouts:
            if len(body) > BYTES_MAX or len(fields) > _FIELDS_MAX:
                return
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[beginning] = None
        elif self._layouts[beginning] is None:
            mask = _mask(body, fields[b"$db"])
            if mask:
                self._layouts[beginning] = CommandLayout(body, mask, fields, name, db)


COMMAND_LAYOUTS: Final = CommandLayouts()
"""The layouts of this process."""


def _mask(body: bytes, db: Span) -> int:
    """Mask the bytes that determine the positions of the fields, the command's name and its database.

    Return 0 if the positions also depend on values.
    """
    decides = bytearray(len(body))
    _mark(decides, 0, _LENGTH_BYTES)
    for _, (kind, element_start, value_start, _) in spans(body):
        deciding = deciding_bytes(kind)
        if deciding is None:
            return 0
        _mark(decides, element_start, value_start + deciding)
    _mark(decides, db[2], db[3])
    _mark(decides, len(body) - 1, len(body))
    return int.from_bytes(decides, "little")


def _mark(decides: bytearray, start: int, end: int) -> None:
    decides[start:end] = b"\xff" * (end - start)


_start_of = itemgetter(1)

_UUID_SUBTYPE: Final = 4

SESSION_FIELDS: Final = (b"lsid", b"txnNumber", b"autocommit", b"startTransaction")
"""Only requests with one of these fields use a session."""

_OF_SESSIONS: Final = frozenset(SESSION_FIELDS)

_READ_WITHOUT_PARSER: Final = frozenset(
    {
        *("collStats", "collstats", "convertToCapped", "count", "distinct", "filemd5", "planCacheClear"),
        *("planCacheClearFilters", "planCacheListFilters", "planCacheSetFilter", "validate"),
    }
)
"""Commands whose collection MongoDB reads without its parser (IDL), with another error code."""


class Request:
    """One command message. A null in a session field counts as its absence, as for MongoDB, and is removed.

    Attributes:
        fields: the spans of its top-level elements, by name.
        name: the command, as the client spelt it.
    """

    __slots__ = ("_document", "body", "db", "fields", "message", "name")

    fields: Mapping[bytes, Span]

    def __init__(self, message: OpMsg) -> None:
        """Index the top level of the body.

        Raises:
            CommandError: InvalidBSON; 40571, ``$db`` is missing; 13111, it is not a string; InvalidNamespace, it is not
                a database name; 40413, a field occurs twice.
        """
        self.message = message
        self.body = body = message.body
        self._document: dict[str, Any] | None = None
        layout = COMMAND_LAYOUTS.find(body)
        if layout is not None:
            self.fields, self.name, self.db = layout.fields, layout.name, layout.db
            return
        try:
            self.fields = fields = index(body)
        except InvalidBSONError as error:
            raise CommandError(ErrorCode.InvalidBSON, f"{error} in object with unknown _id") from error
        db = fields.get(b"$db")
        if db is None:
            raise CommandError(40571, "OP_MSG requests require a $db argument")
        if db[0] != STRING:
            raise CommandError(13111, f"wrong type for field ($db) {type_name(db[0])} != string")
        self.name = next(iter(fields)).decode(errors="replace")
        self.db = name_text(body[db[2] + 4 : db[3] - 1])
        check_database_name(self.db)
        _refuse_repeated(body, fields)
        if not _OF_SESSIONS.isdisjoint(fields):
            nulls = [fields[name] for name in SESSION_FIELDS if name in fields and fields[name][0] == NULL]
            if nulls:
                self.message = message.with_body(without_spans(body, sorted(nulls, key=_start_of)))
                self.body = self.message.body
                self.fields = index(self.body)
                return
        COMMAND_LAYOUTS.learn(body, fields, self.name, self.db)

    def with_body(self, body: bytes) -> "Request":
        """Return the same request with another body; raises the errors of `__init__`."""
        return Request(self.message.with_body(body))

    def without(self, names: Iterable[bytes]) -> "Request":
        """Return the same request without these top-level fields; the same object if it has none of them."""
        fields = self.fields
        removed = [fields[name] for name in names if name in fields]
        return self.with_body(without_spans(self.body, sorted(removed, key=_start_of))) if removed else self

    def overwrite(self, at: int, value: bytes) -> None:
        """Overwrite some bytes of the body, here and in the message; all elements must keep their positions."""
        body = self.body
        self.body = self.message.body = b"".join((body[:at], value, body[at + len(value) :]))
        self._document = None

    @property
    def document(self) -> dict[str, Any]:
        """The whole body as a dict, for infrequent commands; without document sequences.

        Raises:
            CommandError: Overflow, the body is nested too deep.
            InvalidBSONError: the body is not well-formed.
        """
        if self._document is None:
            if depth_exceeds(self.body, NESTING_LEVELS_MAX):
                raise CommandError(ErrorCode.Overflow, "BSONObj exceeds maximum nested object depth")
            self._document = decode_exactly(self.body)
        return self._document

    def get(self, name: bytes, default: Any = None) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """Decode one top-level field."""
        span = self.fields.get(name)
        return default if span is None else decode_value(self.body, span)

    def raw(self, span: Span) -> bytes:
        """Return the raw value at a span of the body."""
        return self.body[span[2] : span[3]]

    def raw_object(self, name: bytes) -> bytes | None:
        """Return the bytes of a top-level document; None if it is absent. Raises TypeMismatch for another type."""
        span = self.fields.get(name)
        if span is None:
            return None
        if span[0] != OBJECT:
            raise self._wrong_type(name, span, "object")
        return self.body[span[2] : span[3]]

    def documents(self, name: bytes) -> list[bytes]:
        """Return the documents of an array argument, from the document sequence of that name or from the body.

        Raises:
            CommandError: 40414, there is neither; 10065, it is null; TypeMismatch, it is not an array of documents;
                InvalidBSON.
        """
        for sequence in self.message.sequences:
            if sequence.name == name:
                return sequence.documents
        span = self.fields.get(name)
        if span is None:
            raise missing_field(f"{self.name}.{name.decode(errors='replace')}")
        if span[0] == NULL:
            raise not_an_object(name.decode(errors="replace"))
        if span[0] != ARRAY:
            raise self._wrong_type(name, span, "array")
        return documents_of_array(self.body, span, f"{self.name}.{name.decode(errors='replace')}")

    def _wrong_type(self, path: bytes, span: Span, expected: str) -> CommandError:
        return wrong_type(f"{self.name}.{path.decode(errors='replace')}", span[0], expected)

    def _not_a_collection(self, span: Span) -> CommandError:
        is_uuid = span[0] == BINARY and self.body[span[2] + 4] == _UUID_SUBTYPE
        return CommandError(
            ErrorCode.InvalidNamespace if self.name in _READ_WITHOUT_PARSER else ErrorCode.BadValue,
            "Collection name must be provided. UUID is not valid in this context"
            if is_uuid
            else f"collection name has invalid type {type_name(span[0])}",
        )

    @property
    def collection(self) -> str:
        """The collection that the command's first field names.

        Raises:
            CommandError: InvalidNamespace or BadValue, it is not a string; InvalidNamespace, it is not UTF-8.
        """
        body = self.body
        kind, _, value_start, value_end = span = next(iter(self.fields.values()))
        if kind != STRING:
            raise self._not_a_collection(span)
        return name_text(body[value_start + 4 : value_end - 1])


def _refuse_repeated(body: bytes, fields: Mapping[bytes, Span]) -> None:
    """Raise 40413 if a field occurs twice, with the struct that MongoDB parses first in any command."""
    # The index keeps only one element of a repeated field, so the lengths do not add up then.
    if sum([span[3] - span[1] for span in fields.values()]) == len(body) - DOCUMENT_BYTES_MIN:
        return
    seen: set[bytes] = set()
    for name, _ in spans(body):
        if name in seen:
            raise duplicate_field(f"APIParametersFromClient.{name.decode(errors='replace')}")
        seen.add(name)


def documents_of_array(body: bytes, array: Span, path: str) -> list[bytes]:
    """Return the documents of an array as raw bytes; ``path`` is ``<struct>.<field>`` for errors.

    Raises:
        CommandError: TypeMismatch, an element is not a document; InvalidBSON.
    """
    documents: list[bytes] = []
    try:
        for position, element in spans(body, array[2]):
            if element[0] != OBJECT:
                raise wrong_type(f"{path}.{position.decode(errors='replace')}", element[0], "object")
            documents.append(body[element[2] : element[3]])
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error
    return documents


_PIPELINE: Final = b"pipeline"


def with_stages(body: bytes, stages: Sequence[bytes]) -> bytes:
    """Replace the pipeline of a command by raw ``stages``."""
    return append(without(body, (_PIPELINE,)), element(_PIPELINE, ARRAY, array_of_documents(stages)))


_IN_STATEMENT: Final = b"\x04u\0"
FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})
RETRYABLE_WRITES: Final = FIND_AND_MODIFY | {"delete", "insert", "update"}
"""The commands that may have a transaction number outside transactions."""


def update_pipelines(request: Request) -> Iterator[tuple[bytes, Span]]:
    """Yield the update pipelines of a request, each as a document and the span of the array in it.

    Raises:
        CommandError: an ``update`` without statements.
        InvalidBSONError: a statement is malformed.
    """
    if request.name in FIND_AND_MODIFY:
        span = request.fields.get(b"update")
        if span is not None and span[0] == ARRAY:
            yield request.body, span
    elif request.name == "update" and _IN_STATEMENT in request.message.frame:
        for statement in request.documents(b"updates"):
            span = find(statement, b"u")
            if span is not None and span[0] == ARRAY:
                yield statement, span


MASK: Final = "xxx"
"""Replacement for a secret."""

_SECRETS: Final = frozenset({b"pwd", b"payload", b"speculativeAuthenticate"})
_SECRETS_OF_AUTHENTICATE: Final = _SECRETS | {b"key", b"nonce"}


def secret_fields(request: Request) -> frozenset[bytes]:
    """Return the names of the fields whose values are secret in this command."""
    return _SECRETS_OF_AUTHENTICATE if request.name == "authenticate" else _SECRETS


def shown_body(request: Request) -> bytes:
    """Return the body of a command with its secrets masked."""
    secrets = secret_fields(request)
    if secrets.isdisjoint(request.fields):
        return request.body
    return from_elements(
        b"".join(
            encode_elements({name.decode(): MASK}) if name in secrets else request.body[start:end]
            for name, (_, start, _, end) in request.fields.items()
        )
    )


def raw_elements(request: Request, names: tuple[bytes, ...]) -> bytes:
    """Return the elements of a command with the given names, ready for `rawbson.append`."""
    body, fields = request.body, request.fields
    spans = [fields[name] for name in names if name in fields]
    return b"".join([body[start:end] for _, start, _, end in spans])
