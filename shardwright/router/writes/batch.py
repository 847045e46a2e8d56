"""A write command as received: its kind, its statements as slices of the message, and their ids."""

from enum import Enum
from typing import Any, Final

from bson.int64 import Int64

from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.time_series import on_buckets, on_measurements
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError, not_an_object, wrong_type
from shardwright.wire.limits import MESSAGE_BYTES_MAX, WRITE_BATCH_OPERATIONS_MAX
from shardwright.wire.message import is_one_document
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    INT32,
    NULL,
    OBJECT,
    InvalidBSONError,
    append,
    decode_value,
    encode_elements,
    find,
    spans,
    type_name,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.request_validation import WRITE_CONCERN


class WriteKind(Enum):
    """The kind of a batch: the name of its command, and the argument that holds the statements."""

    INSERT = ("insert", b"documents")
    UPDATE = ("update", b"updates")
    DELETE = ("delete", b"deletes")

    # Each write looks up its counter by kind, and Enum would compute the hash in Python.
    __hash__ = object.__hash__

    def __init__(self, command: str, field: bytes) -> None:
        self.command = command
        self.field = field


STATEMENT_ID_FIELDS: Final = frozenset({b"stmtId", b"stmtIds"})

_NO_ID: Final = -1
"""Stands for no id. A mongod treats all other numbers as ids."""

_IDS: Final = 1 << 32


def statement_ids(request: Request, count: int) -> list[int]:
    """Return the id of each of ``count`` statements: the client's own if it gave any, else its position in the batch.

    Raises:
        CommandError: TypeMismatch, InvalidOptions or InvalidLength for wrong ids, with a mongod's texts.
    """
    first, explicit = _first(request), _explicit(request)
    if explicit is None:
        return [_as_int32((first or 0) + position) for position in range(count)]
    if first is not None:
        raise CommandError(ErrorCode.InvalidOptions, "May not specify both stmtId and stmtIds in write command")
    if len(explicit) != count:
        raise CommandError(
            ErrorCode.InvalidLength,
            f"Number of statement ids must match the number of batch entries. Got {len(explicit)} statement ids "
            f"but {count} operations.",
        )
    return explicit


def check_distinct(request: Request) -> None:
    """Refuse a retryable insert of several documents with one id, which crashes a mongod 6.0.5.

    Updates and deletes are harmless: the second one counts as a retry of the first. `_NO_ID` is not remembered.

    Raises:
        CommandError: InvalidOptions; TypeMismatch for ids that are not numbers.
    """
    remembered = [each for each in _explicit(request) or () if each != _NO_ID]
    if len(set(remembered)) < len(remembered):
        raise CommandError(ErrorCode.InvalidOptions, "The statement ids of an insert must be different")


def _first(request: Request) -> int | None:
    span = request.fields.get(b"stmtId")
    if span is None or span[0] == NULL:
        return None
    first: int = decode_value(request.body, Arguments.of(request).span(b"stmtId", INT32))
    return first


def _explicit(request: Request) -> list[int] | None:
    span = request.fields.get(b"stmtIds")
    if span is None:
        return None
    if span[0] == NULL:
        raise not_an_object("stmtIds")
    array = Arguments.of(request).span(b"stmtIds", ARRAY)
    ids: list[int] = []
    for name, each in spans(request.body, array[2]):
        if each[0] not in (INT32, NULL):
            raise wrong_type(f"{request.name}.stmtIds.{name.decode()}", each[0], type_name(INT32))
        if each[0] == INT32:  # mongod's parser leaves out nulls
            ids.append(decode_value(request.body, each))
    return ids


def _as_int32(number: int) -> int:
    """Wrap a number at the int32 limits, as mongod does."""
    return (number + _IDS // 2) % _IDS - _IDS // 2


STATEMENT_ID_BYTES_MAX: Final = 11
"""Bytes that one statement id adds to a ``stmtIds`` array: type, a name of at most five digits and a NUL, an int32."""

_COMMAND_BYTES_RESERVED: Final = 1_024
"""Room in a message for the router's additions: versions, the names and lengths of sections and of ``stmtIds``."""


class WriteBatch:
    """An insert, update or delete command.

    Attributes:
        is_ordered: statements are executed in turn, and the first error ends the batch.
        is_retryable: the shards remember its statements, so it can be sent again.
        is_numbered: the shards remember its statements by id, also in an internal transaction for a retryable write.
        own_session: the raw elements of a router's session that the shards use to remember broadcast statements. Empty
            if they use the client's session or do not remember statements.
        is_unacknowledged: the client requested ``w: 0`` and does not receive the outcome.
        body: the command for shards. ``w: 0`` is raised to 1, because a shard must answer at least to reject versions.
        has_own_statements: a statement was replaced, so the client's message cannot be forwarded.
        is_on_buckets: the collection is a sharded time-series collection, and shards get a command for its buckets.
    """

    __slots__ = (
        "_divided_body",
        "_may_be_remembered",
        "_statement_ids",
        "_statements",
        "body",
        "has_own_statements",
        "is_numbered",
        "is_on_buckets",
        "is_ordered",
        "is_retryable",
        "is_unacknowledged",
        "kind",
        "own_session",
        "request",
    )

    def __init__(self, kind: WriteKind, request: Request) -> None:
        """Read the fields that concern the whole batch.

        Raises:
            CommandError: TypeMismatch, ``ordered`` is not a bool; InvalidOptions, documents have the same ``stmtIds``.
        """
        self.kind = kind
        self.request = request
        self.is_ordered = Arguments.of(request).boolean(b"ordered", True, Strictness.BOOL)
        self.is_retryable = b"txnNumber" in request.fields and b"autocommit" not in request.fields
        self.is_numbered = self.is_retryable or not STATEMENT_ID_FIELDS.isdisjoint(request.fields)
        if self.is_retryable and kind is WriteKind.INSERT and b"stmtIds" in request.fields:
            check_distinct(request)
        write_concern = _unacknowledged_write_concern(request)
        self.is_unacknowledged = write_concern is not None
        self.body = request.body
        if write_concern is not None:
            acknowledged = encode_elements({"writeConcern": {**write_concern, "w": 1}})
            self.body = append(without(request.body, (WRITE_CONCERN,)), acknowledged)
        self.has_own_statements = self.is_on_buckets = False
        self.own_session = b""
        self._statements: list[bytes] | None = None
        self._statement_ids: list[int] | None = None
        self._divided_body: bytes | None = None
        self._may_be_remembered: bool | None = None

    @property
    def statements(self) -> list[bytes]:
        """The documents to insert, or the update or delete statements, each as its own bytes.

        Raises:
            CommandError: the argument is missing or not an array of documents; InvalidLength for none or too many.
        """
        if self._statements is None:
            statements = self.request.documents(self.kind.field)
            if not 1 <= len(statements) <= WRITE_BATCH_OPERATIONS_MAX:
                raise CommandError(
                    ErrorCode.InvalidLength,
                    f"Write batch sizes must be between 1 and {WRITE_BATCH_OPERATIONS_MAX}. "
                    f"Got {len(statements)} operations.",
                )
            self._statements = statements
        return self._statements

    @property
    def statement_count(self) -> int:
        """The number of statements; 0 in a malformed batch, which a shard has refused.

        A single statement is not cut out of the message to count it.
        """
        sequences = self.request.message.sequences
        if self._statements is None and len(sequences) == 1 and is_one_document(sequences[0].data):
            return 1
        try:
            return len(self.statements)
        except (CommandError, InvalidBSONError, RemoteProtocolError):
            return 0

    @property
    def may_be_remembered(self) -> bool:
        """Whether shards can remember the statements by a router's session: each must affect one document only."""
        if self._may_be_remembered is None:
            self._may_be_remembered = not self.is_numbered and not any(map(_may_concern_many, self.statements))
        return self._may_be_remembered

    @property
    def is_repeatable(self) -> bool:
        """Whether broadcast statements can be sent again although they may have found something."""
        return self.is_retryable or bool(self.own_session)

    def address_buckets(self, *, is_on_buckets: bool) -> None:
        """Make the command name the buckets of the collection, or the collection again."""
        if is_on_buckets != self.is_on_buckets:
            self.is_on_buckets = is_on_buckets
            self.body = on_buckets(self.body) if is_on_buckets else on_measurements(self.body)
            self._divided_body = None

    def replace_statements(self, statements: list[bytes]) -> None:
        """Replace the client's statements."""
        self._statements = statements
        self.has_own_statements = True

    @property
    def divided_body(self) -> bytes:
        """The command without its statements and their ids, to be sent with some of them.

        It has no cluster time. Each message gets the router's current one, which follows the messages answered before.
        """
        if self._divided_body is None:
            self._divided_body = without(self.body, STATEMENT_ID_FIELDS | {self.kind.field, CLUSTER_TIME})
        return self._divided_body

    @property
    def fits_with_versions(self) -> bool:
        """Whether the client's message leaves room for the version elements."""
        return len(self.request.message.frame) + _COMMAND_BYTES_RESERVED <= MESSAGE_BYTES_MAX

    @property
    def statement_bytes_max(self) -> int:
        """Maximum bytes of statements in a message to a shard."""
        return MESSAGE_BYTES_MAX - len(self.divided_body) - _COMMAND_BYTES_RESERVED

    def size_of(self, position: int) -> int:
        """Return the bytes that a statement takes of `statement_bytes_max`."""
        return len(self.statements[position]) + STATEMENT_ID_BYTES_MAX

    def statement_ids(self) -> list[int]:
        """Return the ids by which the shards remember the statements; errors as the function of that name."""
        if self._statement_ids is None:
            self._statement_ids = statement_ids(self.request, len(self.statements))
        return self._statement_ids


def _unacknowledged_write_concern(request: Request) -> dict[str, Any] | None:
    """Return the write concern of the command if it is ``w: 0``."""
    span = request.fields.get(WRITE_CONCERN)
    if span is None or span[0] != OBJECT:
        return None
    write_concern: dict[str, Any] = decode_value(request.body, span)
    w = write_concern.get("w")
    if isinstance(w, int | float | Int64) and not isinstance(w, bool) and w == 0 and not write_concern.get("j"):
        return write_concern
    return None


def _may_concern_many(statement: bytes) -> bool:
    multi, limit = find(statement, b"multi"), find(statement, b"limit")
    if multi is not None and decode_value(statement, multi) is not False:
        return True
    return limit is not None and (limit[0] == BOOL or decode_value(statement, limit) != 1)
