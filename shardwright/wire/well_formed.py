"""Full BSON validation of a request, run only after a handler has failed on it.

A mongod validates each message on receipt and answers InvalidBSON. Our daemons read only as deep as they need to, and
leave the rest to the mongod. If a daemon fails to read some bytes, it validates the whole request to determine whether
the client sent malformed BSON.
"""

from bson.errors import InvalidBSON

from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import InvalidBSONError
from shardwright.wire.request import Request


def error_of_request(failure: Exception, request: Request) -> CommandError | None:
    """Return the error to send for a command whose handler raised ``failure``; None for an internal error."""
    if isinstance(failure, CommandError):
        return failure
    if not isinstance(failure, InvalidBSONError | InvalidBSON | RecursionError):
        return None
    try:
        _check(request.body, 0, NESTING_LEVELS_MAX)
        for sequence in request.message.sequences:
            for document in sequence.documents:
                _check(document, 0, NESTING_LEVELS_MAX)
    except InvalidBSONError as error:
        return CommandError(ErrorCode.InvalidBSON, f"{error} in object with unknown _id")
    except CommandError as error:
        return error
    return None


def _check(document: bytes, start: int, levels: int) -> None:
    """Validate a document at all levels; raise InvalidBSONError, or Overflow if it is nested too deep."""
    if not levels:
        raise CommandError(ErrorCode.Overflow, "BSONObj exceeds maximum nested object depth")
    for _, (kind, _, value_start, value_end) in rawbson.spans(document, start):
        if kind in (rawbson.OBJECT, rawbson.ARRAY):
            _check(document, value_start, levels - 1)
        elif kind in (rawbson.STRING, rawbson.CODE, rawbson.SYMBOL):
            if document[value_end - 1]:
                raise InvalidBSONError("Not null terminated string")
        elif kind == rawbson.BOOL:
            if document[value_start] > 1:
                raise InvalidBSONError("BSON bool is neither false nor true")
        elif kind == rawbson.CODE_WITH_SCOPE:
            _check_code_with_scope(document, value_start, value_end, levels)


def _check_code_with_scope(document: bytes, start: int, end: int, levels: int) -> None:
    scope = start + 8 + int.from_bytes(document[start + 4 : start + 8], "little")
    if not start + 8 < scope <= end - rawbson.DOCUMENT_BYTES_MIN:
        raise InvalidBSONError("code with scope whose code reaches past its end")
    if document[scope - 1] or scope + rawbson.document_length(document, scope) != end:
        raise InvalidBSONError("code with scope whose parts do not fill it")
    _check(document, scope, levels - 1)
