"""OP_QUERY, OP_GET_MORE and OP_REPLY, which survive only for the first commands of a connection.

Drivers, and mongod's own client, start with a legacy handshake because they cannot know yet whether the server supports
OP_MSG. Some old ones also log in and query the version like that. MongoDB 6.0 refuses every other use of OP_QUERY, and
all of OP_GET_MORE, with the replies built here.

Format: https://www.mongodb.com/docs/manual/legacy-opcodes/. The replies are mongod 6.0.5's.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

import bson

from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.frames import HEADER_BYTES, OP_QUERY, OP_REPLY, next_request_id
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.rawbson import InvalidBSONError

SECONDARY_OK: Final = 1 << 2
EXHAUST: Final = 1 << 6

QUERY_FAILURE: Final = 1 << 1
AWAIT_CAPABLE: Final = 1 << 3

LEGACY_OPCODE_REMOVED: Final = 5739101
BAD_NUMBER_TO_RETURN: Final = 16979
EXHAUST_ON_COMMAND: Final = 18527

_PERMITTED: Final = HELLO_NAMES | {"_isSelf", "authenticate", "buildInfo", "buildinfo", "saslContinue", "saslStart"}
"""Commands that a mongod 6.0.5 accepts in an OP_QUERY."""

_ADVICE: Final = (
    "The client driver may require an upgrade. For more details see "
    "https://dochub.mongodb.org/core/legacy-opcode-removal"
)

_FLAGS = Struct("<I")
_SKIP_AND_RETURN = Struct("<ii")
_REPLY_PREFIX = Struct("<iiiiIqii")  # the header, responseFlags, cursorID, startingFrom, numberReturned


@dataclass(frozen=True, slots=True)
class LegacyQuery:
    """One OP_QUERY message.

    Attributes:
        request_id: the ``responseTo`` of the reply.
        full_collection_name: the namespace, ``<db>.$cmd`` for a command.
        query: the raw command or filter, without the ``$query`` that drivers wrap around it.
    """

    request_id: int
    flags: int
    full_collection_name: str
    skip: int
    number_to_return: int
    query: bytes

    @property
    def is_command(self) -> bool:
        """Whether the query is a command."""
        return self.full_collection_name.partition(".")[2] == "$cmd"


def is_permitted(query: LegacyQuery) -> bool:
    """Whether this is a permitted use of OP_QUERY: a well-formed command of `_PERMITTED`."""
    return query.is_command and _refusal(query) is None


def unsupported_reply(query: LegacyQuery) -> bytes:
    """Build the OP_REPLY frame for a query that `is_permitted` rejects."""
    refusal = _refusal(query) if query.is_command else None
    if refusal is not None:
        return op_reply(query.request_id, bson.encode(refusal.reply()))
    return _removed_reply(query.request_id, "OP_QUERY")


def get_more_reply(request_id: int) -> bytes:
    """Build the OP_REPLY frame for any OP_GET_MORE: no cursor supports it any more."""
    return _removed_reply(request_id, "OP_GET_MORE")


def op_reply(response_to: int, document: bytes, *, flags: int = AWAIT_CAPABLE) -> bytes:
    """Build an OP_REPLY frame with one document."""
    prefix = _REPLY_PREFIX.pack(
        _REPLY_PREFIX.size + len(document), next_request_id(), response_to, OP_REPLY, flags, 0, 0, 1
    )
    return prefix + document


def parse_query(frame: bytes) -> LegacyQuery:
    """Parse a whole OP_QUERY frame; raise RemoteProtocolError if it is malformed.

    The field selector is ignored: it has no meaning for commands.
    """
    opcode = int.from_bytes(frame[12:16], "little")
    if len(frame) < HEADER_BYTES + _FLAGS.size or opcode != OP_QUERY:
        raise RemoteProtocolError("not an OP_QUERY message")
    name_start = HEADER_BYTES + _FLAGS.size
    name_end = frame.find(b"\0", name_start)
    numbers = name_end + 1
    query_start = numbers + _SKIP_AND_RETURN.size
    if name_end < 0 or query_start > len(frame):
        raise RemoteProtocolError("an OP_QUERY message that ends before its query")
    skip, number_to_return = _SKIP_AND_RETURN.unpack_from(frame, numbers)
    try:
        query_end = query_start + rawbson.document_length(frame, query_start)
        if query_end < len(frame):
            selector_bytes = rawbson.document_length(frame, query_end)
            if query_end + selector_bytes != len(frame):
                raise RemoteProtocolError("bytes behind the documents of an OP_QUERY message")
        query = _unwrapped(frame[query_start:query_end])
        rawbson.index(query)
    except InvalidBSONError as error:
        raise RemoteProtocolError(f"an OP_QUERY message with a malformed document: {error}") from error
    return LegacyQuery(
        request_id=int.from_bytes(frame[4:8], "little", signed=True),
        flags=_FLAGS.unpack_from(frame, HEADER_BYTES)[0],
        full_collection_name=frame[name_start:name_end].decode(errors="replace"),
        skip=skip,
        number_to_return=number_to_return,
        query=query,
    )


def _removed_reply(request_id: int, opcode: str) -> bytes:
    failure = {"$err": f"{opcode} is no longer supported. {_ADVICE}", "code": LEGACY_OPCODE_REMOVED, "ok": 0.0}
    return op_reply(request_id, bson.encode(failure), flags=QUERY_FAILURE)


def _refusal(query: LegacyQuery) -> CommandError | None:
    """Return the error for a command that OP_QUERY may not run; None if it may."""
    if query.full_collection_name.startswith("."):
        return CommandError(ErrorCode.InvalidNamespace, "Invalid database name: ''")
    if query.number_to_return not in (-1, 1):
        message = f"Bad numberToReturn ({query.number_to_return}) for $cmd type ns - can only be 1 or -1"
        return CommandError(BAD_NUMBER_TO_RETURN, message)
    if query.flags & EXHAUST:
        message = f"The 'exhaust' OP_QUERY flag is invalid for commands: {query.full_collection_name}"
        return CommandError(EXHAUST_ON_COMMAND, message)
    # MongoDB adds $db when it converts to OP_MSG, so an empty command has that name.
    name = next((name for name, _ in rawbson.spans(query.query)), b"$db").decode(errors="replace")
    if name in _PERMITTED:
        return None
    return CommandError(ErrorCode.UnsupportedOpQueryCommand, f"Unsupported OP_QUERY command: {name}. {_ADVICE}")


def _unwrapped(query: bytes) -> bytes:
    """Unwrap ``{$query: command, ...}``, the form in which drivers added a read preference."""
    first = next(rawbson.spans(query), None)
    if first is None:
        return query
    name, (kind, _, start, end) = first
    if name in (b"$query", b"query") and kind == rawbson.OBJECT:
        return query[start:end]
    return query
