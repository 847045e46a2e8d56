"""The session fields of a command: ``lsid``, ``txnNumber``, ``autocommit``, ``startTransaction``, checked as by mongod.

The messages name MongoDB's definition of these fields, ``OperationSessionInfo``.

Broadcast statements without a number are sent in a session of the router, with numbers, so that none is executed twice
during a migration. The mongod sees only that session. A shard that lists `CLIENT_SESSION` among the ``extensions`` of
its hello receives the client's ``lsid`` in this field. So killing the client's session ends the write, on whichever
router, and ``currentOp`` shows the session there.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field, unknown_field, wrong_type
from shardwright.wire.rawbson import BINARY, BOOL, INT64, OBJECT, Span, decode_value, element
from shardwright.wire.request import Request
from shardwright.wire.type_names import binary_type_name, type_name

_STRUCT: Final = "OperationSessionInfo"
LSID: Final = f"{_STRUCT}.lsid"

TXN_NUMBER: Final = b"txnNumber"
AUTOCOMMIT: Final = b"autocommit"
START_TRANSACTION: Final = b"startTransaction"

UUID_SUBTYPE: Final = 4
_UUID_BYTES: Final = 16
_UID_BYTES: Final = 32
_VALUE_AT: Final = 5  # in binary data, after its length and subtype

_LSID_FIELDS: Final = {b"id": BINARY, b"uid": BINARY, b"txnNumber": INT64, b"txnUUID": BINARY}

_RETRYABLE_WRITES: Final = frozenset({"delete", "findAndModify", "findandmodify", "insert", "update"})

WITHOUT_USER: Final = frozenset(
    {"buildInfo", "buildinfo", "connectionStatus", "getnonce", "hello", "isMaster", "ismaster", "ping", "whatsmyuri"}
)
"""Commands that clients may run before they authenticate, and which therefore use no session."""


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
        uid = body[fields[b"uid"][2] + _VALUE_AT : fields[b"uid"][3]]
        if len(uid) != _UID_BYTES:
            raise CommandError(ErrorCode.UnsupportedFormat, f"Unsupported SHA256Block hash length: {len(uid)}")
    if b"txnUUID" in fields:
        read_uuid(body, fields[b"txnUUID"], f"{path}.txnUUID")
        raise CommandError(ErrorCode.InvalidOptions, "Internal sessions are not supported outside of transactions")
    if b"txnNumber" in fields:
        raise CommandError(ErrorCode.InvalidOptions, "Cannot specify txnNumber in lsid without specifying txnUUID")
    return identifier, uid


def check_transaction_fields(request: Request) -> None:
    """Check that ``txnNumber``, ``autocommit`` and ``startTransaction`` fit together, and the command.

    Raises:
        CommandError: TypeMismatch, InvalidOptions; 50889 or OperationNotSupportedInTransaction, the command accepts
            none of them; 50768, it is not a retryable write.
    """
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
        if number is not None and request.name not in _RETRYABLE_WRITES:
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
    subtype, value = body[start + 4], body[start + _VALUE_AT : end]
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
