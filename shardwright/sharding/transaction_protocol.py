"""Sessions and transactions in commands: their fields, read concerns, error labels, and WouldChangeOwningShard.

**Session fields.** ``lsid``, ``txnNumber``, ``autocommit`` and ``startTransaction`` are checked as by mongod. The
messages name MongoDB's definition of these fields, ``OperationSessionInfo``. Broadcast statements without a number are
sent in a session of the router, with numbers, so that none is executed twice during a migration. The mongod sees only
that session. A shard that lists `CLIENT_SESSION` among the ``extensions`` of its hello receives the client's ``lsid``
in this field. So killing the client's session through any router ends the write, and ``currentOp`` shows the session.

**Coordinators.** A router sends ``coordinator: true`` with the first statement to the shard that will coordinate the
commit. The coordinator sends ``$coordinator`` with ``prepareTransaction``, and with the ``commitTransaction`` or
``abortTransaction`` that carries its decision. A participant accepts these for prepared transactions only from its
coordinator. mongods support neither field.

``readOnly`` is the first field of a shard's reply. So the reply still ends like a mongod's, which routers recognize by
comparing a few bytes, and neither side has to walk over the other fields. Genuine shards have it elsewhere.

**Documents that change their shard.** In MongoDB, the shard of the old key answers WouldChangeOwningShard, with the
document before and after the update (`OwnerChange`). The router then runs a delete and an insert in a transaction. The
shard that executed the update would have no record of it, so it could not answer when the client retries it.

Therefore the router sends the update itself, as part of a transaction and with the field `MAY_CHANGE_OWNER`, to a shard
that lists the field among the ``extensions`` of its hello. If the result belongs to another shard, this shard still
executes the update, so that its mongod records the statement. It deletes the result in the same transaction. It replies
as to an update, plus::

    changedOwner: {document: <the document to be inserted on the shard that owns its new key>}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Self

from bson.timestamp import Timestamp

from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError, missing_field, unknown_field, wrong_type
from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import BODY_AT, OpMsg, with_body
from shardwright.wire.rawbson import (
    BINARY,
    BOOL,
    INT64,
    OBJECT,
    Span,
    append,
    binary_type_name,
    decode_value,
    element,
    find,
    raw_document,
    type_name,
)
from shardwright.wire.request import RETRYABLE_WRITES, Request

_STRUCT: Final = "OperationSessionInfo"
LSID: Final = f"{_STRUCT}.lsid"

TXN_NUMBER: Final = b"txnNumber"
AUTOCOMMIT: Final = b"autocommit"
START_TRANSACTION: Final = b"startTransaction"

UUID_SUBTYPE: Final = 4
_UUID_BYTES: Final = 16
_UID_BYTES: Final = 32
_BINARY_AT: Final = 5  # in binary data, after its length and subtype

_LSID_FIELDS: Final = {b"id": BINARY, b"uid": BINARY, b"txnNumber": INT64, b"txnUUID": BINARY}

WITHOUT_USER: Final = frozenset(
    {"buildInfo", "buildinfo", "connectionStatus", "getnonce", "hello", "isMaster", "ismaster", "ping", "whatsmyuri"}
)
"""Commands that clients may run before they authenticate, and which therefore use no session."""

MAY_CHANGE_OWNER: Final = b"mayChangeOwner"
MAY_CHANGE_OWNER_ELEMENT: Final = element(MAY_CHANGE_OWNER, BOOL, b"\1")

CHANGED_OWNER: Final = b"changedOwner"

_BEFORE: Final = b"preImage"
_AFTER: Final = b"postImage"
_IS_UPSERT: Final = b"shouldUpsert"

COORDINATOR: Final = b"coordinator"
"""Field of the statement that starts a transaction on a shard: ``true`` if that shard is its coordinator."""

COORDINATED_BY: Final = b"$coordinator"
"""Field of a coordinator's command to a participant: the id of the coordinator's shard, a string."""

_ELEMENTS: Final = {value: element(b"readOnly", BOOL, bytes([value])) for value in (False, True)}
_NAME: Final = element(b"readOnly", BOOL, b"")
_LENGTH: Final = len(_NAME) + 1

_PREFIX: Final = Struct("<iiiiIBi")
"""Header of an OP_MSG, its flags, the kind of its first section, and the length of its body."""

_NAME_AT: Final = _PREFIX.size
_READ_ONLY_AT: Final = _NAME_AT + len(_NAME)


def check_lsid(body: bytes, fields: Mapping[bytes, Span], path: str = LSID) -> tuple[bytes, bytes]:
    """Check an ``lsid``; return the bytes of its ``id`` and of its ``uid`` (empty without one).

    ``path`` is the name of the ``lsid`` in messages.

    Raises:
        CommandError: TypeMismatch, InvalidUUID, UnsupportedFormat; 40414 or 40415; InvalidOptions, it is a child
            session, which only servers use.
    """
    for name, span in fields.items():
        field = f"{path}.{name.decode(errors='replace')}"
        if name not in _LSID_FIELDS:
            raise unknown_field(field)
        if span[0] != _LSID_FIELDS[name]:
            raise wrong_type(field, span[0], type_name(_LSID_FIELDS[name]))
    if b"id" not in fields:
        raise missing_field(f"{path}.id")
    identifier = read_uuid(body, fields[b"id"], f"{path}.id")
    uid = b""
    if b"uid" in fields:
        uid = body[fields[b"uid"][2] + _BINARY_AT : fields[b"uid"][3]]
        if len(uid) != _UID_BYTES:
            raise CommandError(ErrorCode.UnsupportedFormat, f"Unsupported SHA256Block hash length: {len(uid)}")
    if b"txnUUID" in fields:
        read_uuid(body, fields[b"txnUUID"], f"{path}.txnUUID")
        raise CommandError(ErrorCode.InvalidOptions, "Internal sessions are not supported outside of transactions")
    if b"txnNumber" in fields:
        raise CommandError(ErrorCode.InvalidOptions, "Cannot specify txnNumber in lsid without specifying txnUUID")
    return identifier, uid


_POSITIVE_MAX: Final = 0x7F
"""Highest value of the last byte of a number that is not negative."""


def check_transaction_fields(request: Request) -> None:
    """Check that ``txnNumber``, ``autocommit`` and ``startTransaction`` fit together, and the command.

    Raises:
        CommandError: TypeMismatch, InvalidOptions; 50889 or OperationNotSupportedInTransaction, the command accepts
            none of them; 50768, it is not a retryable write.
    """
    if _continues_usually(request):
        return
    number = _field(request, TXN_NUMBER, INT64)
    autocommit = _field(request, AUTOCOMMIT, BOOL)
    starts = _field(request, START_TRANSACTION, BOOL)
    if request.name in WITHOUT_USER:
        if autocommit is not None:
            raise CommandError(
                ErrorCode.OperationNotSupportedInTransaction, "This command is not supported in transactions"
            )
        if number is not None:
            raise CommandError(50889, "It is illegal to provide a txnNumber for this command")
    if number is not None:
        if b"lsid" not in request.fields:
            raise _invalid("Transaction number requires a session ID to also be specified")
        if number < 0:
            raise _invalid("Transaction number cannot be negative")
    if autocommit is None:
        if starts is not None:
            raise _invalid("'startTransaction' field requires 'autocommit' field to also be specified")
        if number is not None and request.name not in RETRYABLE_WRITES:
            raise CommandError(
                50768,
                "txnNumber may only be provided for multi-document transactions and retryable write commands. "
                f"autocommit:false was not provided, and {request.name} is not a retryable write command.",
            )
        return
    if number is None:
        raise _invalid("'autocommit' field requires a transaction number to also be specified")
    if autocommit:
        raise _invalid("Specifying autocommit=true is not allowed.")
    if starts is False:
        raise _invalid("Specifying startTransaction=false is not allowed.")


def _continues_usually(request: Request) -> bool:
    """Whether a request continues a transaction, with all fields as drivers send them; checked without decoding."""
    body, fields = request.body, request.fields
    number, autocommit = fields.get(TXN_NUMBER), fields.get(AUTOCOMMIT)
    return (
        number is not None
        and autocommit is not None
        and number[0] == INT64
        and autocommit[0] == BOOL
        and body[number[3] - 1] <= _POSITIVE_MAX
        and not body[autocommit[2]]
        and START_TRANSACTION not in fields
        and b"lsid" in fields
        and request.name not in WITHOUT_USER
    )


def _field(request: Request, name: bytes, wanted: int) -> int | None:
    span = request.fields.get(name)
    if span is None:
        return None
    if span[0] != wanted:
        raise wrong_type(f"{_STRUCT}.{name.decode()}", span[0], type_name(wanted))
    value: int = decode_value(request.body, span)
    return value


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidOptions, message)


def read_uuid(body: bytes, span: Span, path: str) -> bytes:
    """Read the 16 bytes of a UUID from binary data; raise TypeMismatch for another subtype, or InvalidUUID."""
    _, _, start, end = span
    subtype, value = body[start + 4], body[start + _BINARY_AT : end]
    if subtype != UUID_SUBTYPE:
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"BSON field '{path}' is the wrong binData type '{binary_type_name(subtype)}', expected type 'UUID'",
        )
    if len(value) != _UUID_BYTES:
        raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
    return value


CLIENT_SESSION: Final = b"clientSession"


def client_session_element(lsid: bytes) -> bytes:
    """Build the field for a write of a session, from its raw ``lsid`` with the digest of its user."""
    return element(CLIENT_SESSION, OBJECT, lsid)


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """The content of the error WouldChangeOwningShard for an update that was not executed.

    ``before`` and ``after`` are raw documents. If ``is_upsert``, there was no document, and ``before`` is the query.
    """

    before: bytes
    after: bytes
    is_upsert: bool

    @classmethod
    def read(cls, reply: bytes, fields: Mapping[bytes, Span]) -> Self | None:
        """Read the change in the body of a failed reply; None if it has none."""
        before, after, is_upsert = (fields.get(name) for name in (_BEFORE, _AFTER, _IS_UPSERT))
        if before is None or after is None or before[0] != OBJECT or after[0] != OBJECT:
            return None
        return cls(
            reply[before[2] : before[3]],
            reply[after[2] : after[3]],
            is_upsert is not None and bool(decode_value(reply, is_upsert)),
        )

    def to_fields(self) -> dict[str, Any]:
        """Build the fields of the error besides its code and its message."""
        return {
            _BEFORE.decode(): raw_document(self.before),
            _AFTER.decode(): raw_document(self.after),
            _IS_UPSERT.decode(): self.is_upsert,
        }


def changed_owner(document: bytes) -> dict[str, Any]:
    """Build the field of the shard's reply, given the raw document that has left it."""
    return {CHANGED_OWNER.decode(): {"document": raw_document(document)}}


def document_of_other_owner(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """Return the raw document that a reply requires the router to insert elsewhere; None if there is none."""
    span = fields.get(CHANGED_OWNER)
    found = None if span is None or span[0] != OBJECT else find(reply, b"document", span[2])
    return None if found is None else reply[found[2] : found[3]]


def with_read_only(frame: bytes, *, is_read_only: bool) -> bytes:
    """Add ``readOnly`` to a reply, the frame of an OP_MSG."""
    length, request_id, response_to, _, flags, kind, body_length = _PREFIX.unpack_from(frame)
    if flags or kind or body_length != length - BODY_AT:
        return with_body(frame, append(OpMsg(frame).body, _ELEMENTS[is_read_only]))
    prefix = _PREFIX.pack(length + _LENGTH, request_id, response_to, OP_MSG, 0, 0, body_length + _LENGTH)
    return b"".join((prefix, _ELEMENTS[is_read_only], frame[_NAME_AT:]))


def take_read_only(frame: bytes) -> tuple[bytes, bool] | None:
    """Remove ``readOnly`` from a reply and return its value too; None if it is not the first field."""
    if not frame.startswith(_NAME, _NAME_AT):
        return None
    length, request_id, response_to, opcode, flags, kind, body_length = _PREFIX.unpack_from(frame)
    prefix = _PREFIX.pack(length - _LENGTH, request_id, response_to, opcode, flags, kind, body_length - _LENGTH)
    return prefix + frame[_READ_ONLY_AT + 1 :], bool(frame[_READ_ONLY_AT])


_TIME: Final = "atClusterTime"
_EARLIEST: Final = "afterClusterTime"
_NULL: Final = Timestamp(0, 0)


def demanded_time(concern: Mapping[str, Any], newest: Timestamp) -> Timestamp | None:
    """Return the cluster time at which to read with level snapshot; None if a mongod should refuse the client's times.

    The default is ``newest``, but not before the client's ``afterClusterTime``.
    """
    if _TIME in concern:
        time = concern[_TIME]
        is_valid = isinstance(time, Timestamp) and time != _NULL and _EARLIEST not in concern
        return time if is_valid else None
    earliest = concern.get(_EARLIEST, newest)
    return max(newest, earliest) if isinstance(earliest, Timestamp) else None


def concern_at(concern: Mapping[str, Any], time: Timestamp) -> dict[str, Any]:
    """Build a read concern at a time from `demanded_time`. Other fields are kept, for a mongod to refuse."""
    return {**{name: value for name, value in concern.items() if name != _EARLIEST}, "level": "snapshot", _TIME: time}


_ALWAYS: Final = frozenset[int](
    {
        ErrorCode.WriteConflict,
        ErrorCode.LockTimeout,
        ErrorCode.PreparedTransactionInProgress,
        ErrorCode.ShardCannotRefreshDueToLocksHeld,
        ErrorCode.ShardInvalidatedForTargeting,
        ErrorCode.StaleDbVersion,
        ErrorCode.StaleConfig,
        ErrorCode.StaleEpoch,
    }
) | codes_of(Category.SNAPSHOT)

_OF_STATEMENTS: Final = codes_of(Category.RETRYABLE) | {ErrorCode.NoSuchTransaction}

_NEVER: Final = frozenset[int]({ErrorCode.InternalTransactionNotSupported})

SAYS_NOTHING: Final = frozenset[int](
    {
        ErrorCode.FailedToSatisfyReadPreference,
        ErrorCode.PreparedTransactionInProgress,
        ErrorCode.RetryableTransactionInProgress,
        ErrorCode.TemporarilyUnavailable,
    }
).union(
    *map(
        codes_of,
        (
            Category.CANCELLATION,
            Category.EXCEEDED_TIME_LIMIT,
            Category.INTERRUPTION,
            Category.NETWORK,
            Category.NETWORK_TIMEOUT,
            Category.NOT_PRIMARY,
            Category.RETRYABLE,
            Category.SHUTDOWN,
            Category.WRITE_CONCERN,
        ),
    )
)
"""Transient errors that leave open whether a shard has prepared or committed a transaction, or will."""


def label_transient(error: CommandError, *, is_ending: bool) -> None:
    """Add the label ``TransientTransactionError`` to an error in a transaction where MongoDB does.

    In the answer to a commit or an abort (``is_ending``), a retriable error leaves the outcome open.
    """
    code = error.code
    if code in _NEVER or TRANSIENT_TRANSACTION_ERROR in error.labels:
        return
    if is_ending:
        is_transient = code in _ALWAYS or (
            code == ErrorCode.NoSuchTransaction and "writeConcernError" not in error.extra
        )
    else:
        is_transient = code in _ALWAYS or code in _OF_STATEMENTS
    if is_transient:
        error.labels = (*error.labels, TRANSIENT_TRANSACTION_ERROR)
