"""The arguments of ``getMore``."""

from dataclasses import dataclass
from typing import Final

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import unknown_field
from shardwright.wire.max_time import MAX_TIME_MS, max_time_ms
from shardwright.wire.rawbson import INT64
from shardwright.wire.request import Request

_STRUCT: Final = "getMore"
_KNOWN: Final = frozenset(
    {
        b"getMore",
        b"collection",
        b"batchSize",
        b"maxTimeMS",
        b"term",
        b"lastKnownCommittedOpTime",
        b"comment",
        b"apiVersion",
        b"apiStrict",
        b"apiDeprecationErrors",
        b"lsid",
        b"txnNumber",
        b"autocommit",
        b"startTransaction",
        b"readConcern",
        b"writeConcern",
        b"maxTimeMSOpOnly",
        b"mayBypassWriteBlocking",  # from mongods that read a cursor of the router
    }
)


@dataclass(frozen=True, slots=True)
class GetMoreArguments:
    """What a ``getMore`` asks for.

    Attributes:
        cursor_id: the cursor.
        namespace: the ``db.collection`` named.
        batch_size: how many documents at most, None for as many as fit.
        max_time_ms: how long an awaiting cursor may wait, None if not given.
    """

    cursor_id: int
    namespace: str
    batch_size: int | None
    max_time_ms: int | None

    @classmethod
    def parse(cls, request: Request) -> "GetMoreArguments":
        """Check the arguments as mongod does.

        Raises:
            CommandError: TypeMismatch, 40414 (missing), 40415 (unknown field), 51024 (negative), InvalidNamespace.
        """
        arguments = Arguments.of(request, _STRUCT)
        for name in request.fields:
            if name not in _KNOWN and not name.startswith(b"$"):
                raise unknown_field(f"{_STRUCT}.{name.decode(errors='replace')}")
        collection = arguments.string(b"collection")
        batch_size = arguments.maybe_integer(b"batchSize")
        has_max_time = arguments.maybe_integer(MAX_TIME_MS, minimum=None) is not None
        milliseconds = max_time_ms(request)
        _, _, start, end = arguments.span(b"getMore", INT64)
        cursor_id = int.from_bytes(request.body[start:end], "little", signed=True)
        _check_collection_name(collection)
        return cls(cursor_id, f"{request.db}.{collection}", batch_size or None, milliseconds if has_max_time else None)


def _check_collection_name(name: str) -> None:
    """Refuse what cannot be the name of a collection.

    Raises:
        CommandError: InvalidNamespace.
    """
    if not name:
        raise CommandError(ErrorCode.InvalidNamespace, "Collection names cannot be empty")
    if "\0" in name:
        raise CommandError(ErrorCode.InvalidNamespace, "Collection names cannot have embedded null characters")
    if name.startswith("."):
        raise CommandError(ErrorCode.InvalidNamespace, f"Collection names cannot start with '.': {name}")
