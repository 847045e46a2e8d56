"""The fields of reads of views, which the router rewrites: checked as mongod's parser does. Pure.

The aggregation that a read becomes would be refused for other fields, or with another name of the command.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.router.reads.find_arguments import FIND_STRUCT
from shardwright.sharding.bson_text import document_text
from shardwright.wire.arguments import GENERIC_ARGUMENTS, Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import unknown_field
from shardwright.wire.max_time import max_time_ms
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, index
from shardwright.wire.request import Request

_OF_FIND: Final = frozenset(
    {
        *(b"find", b"filter", b"projection", b"sort", b"hint", b"collation", b"skip", b"limit", b"batchSize"),
        *(b"singleBatch", b"allowDiskUse", b"min", b"max", b"returnKey", b"showRecordId", b"tailable", b"awaitData"),
        *(b"oplogReplay", b"noCursorTimeout", b"allowPartialResults", b"readOnce", b"let", b"options", b"ntoreturn"),
        *(b"allowSpeculativeMajorityRead", b"encryptionInformation", b"term"),
        *(b"$_requestResumeToken", b"$_resumeAfter"),
    }
)
_OF_COUNT: Final = frozenset(
    {
        *(b"count", b"query", b"limit", b"skip", b"hint", b"collation", b"fields", b"queryOptions"),
        *(b"encryptionInformation", b"collectionUUID"),
    }
)
_OF_DISTINCT: Final = frozenset({b"distinct", b"key", b"query", b"collation"})
_KNOWN: Final[Mapping[str, tuple[str, frozenset[bytes]]]] = {
    "find": (FIND_STRUCT, _OF_FIND),
    "count": ("count", _OF_COUNT),
    "distinct": ("distinct", _OF_DISTINCT),
}
_OF_ALL_COMMANDS: Final = GENERIC_ARGUMENTS | {
    *(b"$audit", b"$client", b"$clusterTime", b"$configTime", b"$db", b"$oplogQueryData", b"$queryOptions"),
    *(b"$readPreference", b"$replData", b"$topologyTime", b"clientOperationKey", b"stmtId", b"maxTimeMSOpOnly"),
}
_BOOLEANS: Final = (b"returnKey", b"showRecordId", b"tailable", b"noCursorTimeout", b"awaitData", b"readOnce")


def check_fields(request: Request) -> None:
    """Refuse fields that a ``find``, ``count`` or ``distinct`` does not have.

    Raises:
        CommandError: 40415.
    """
    struct, known = _KNOWN[request.name]
    for name in request.fields:
        if name not in known and name not in _OF_ALL_COMMANDS:
            raise unknown_field(f"{struct}.{name.decode(errors='replace')}")


def check_find(request: Request) -> None:
    """Check what the aggregation would not be refused for, or for something else.

    Raises:
        CommandError: TypeMismatch, FailedToParse, BadValue.
    """
    given = Arguments.of(request, FIND_STRUCT)
    booleans = {name: given.boolean(name, strictness=Strictness.OPTIONAL_BOOL) for name in _BOOLEANS}
    for name in (b"options", b"let"):
        given.maybe_raw(name)
    if booleans[b"awaitData"] and not booleans[b"tailable"]:
        raise CommandError(ErrorCode.FailedToParse, "Cannot set 'awaitData' without also setting 'tailable'")
    hint = request.fields.get(b"hint")
    names = index(request.body, hint[2]) if hint is not None and hint[0] == OBJECT else {}
    if b"$natural" in names and len(names) > 1:
        shown = document_text(request.raw_object(b"hint") or EMPTY_DOCUMENT)
        raise CommandError(ErrorCode.BadValue, f"Cannot include '$natural' in compound hint: {shown}")
    max_time_ms(request)  # in an explain nobody has looked at it
