"""Transaction protocol between routers and shards: fields, read concerns and error labels.

A router sends ``coordinator: true`` with the first statement to the shard that will coordinate the commit. The
coordinator sends ``$coordinator`` with ``prepareTransaction``, and with the ``commitTransaction`` or
``abortTransaction`` that carries its decision. A participant accepts these for prepared transactions only from its
coordinator. mongods support neither field.

``readOnly`` is the first field of a shard's reply. So the reply still ends like a mongod's, which routers recognize by
comparing a few bytes, and neither side has to walk over the other fields. Genuine shards have it elsewhere.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import BODY_AT, OpMsg, with_body
from shardwright.wire.rawbson import BOOL, append, element

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
_VALUE_AT: Final = _NAME_AT + len(_NAME)


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
    return prefix + frame[_VALUE_AT + 1 :], bool(frame[_VALUE_AT])


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
