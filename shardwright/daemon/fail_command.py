"""The fail point ``failCommand``: the affected commands, and its effects.

It fails a command before the command runs, delays it, closes the client's connection, or adds a write concern error to
the reply of a write that has run.

Extra information of the error is parsed by its code, as in mongod, which constructs the error from the fields defined
for the code. It refuses fields of another type, and returns nothing else. All this was observed on a mongod 6.0.5.
"""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import CommandError, missing_field, wrong_type
from shardwright.wire.rawbson import encode_elements, from_elements, is_string, spans, type_name_of, type_of

_MISSING_INFO: Final = 40671
_WRONG_TYPE: Final = 13111
_NOT_AN_OBJECT: Final = 10065

Info = Mapping[str, Any]
Parse = Callable[[Info], dict[str, Any]]


def extra_info(code: int, info: object) -> dict[str, Any] | None:
    """Return the fields that an error has in addition to its code; None for a code that has none.

    Args:
        info: the given information; None if none is given.

    Raises:
        CommandError: 40671, the code requires some; TypeMismatch, it is not a document; or mongod's error for its
            fields.
    """
    parse = _REQUIRED.get(code)
    if info is None:
        if parse is not None:
            raise CommandError(_MISSING_INFO, f"Missing required extra info for error code {code_name(code)}")
        return None
    parse = parse or _OPTIONAL.get(code)
    if parse is None:
        return None
    try:
        return parse(_document(info))
    except CommandError as error:
        raise CommandError(
            error.code, f"Error parsing extra info for {code_name(code)} :: caused by :: {error.message}"
        ) from None


# Fields


def _typed(info: Info, name: str, wanted: str) -> Any:  # noqa: ANN401 - of the wanted type
    if name not in info:
        raise CommandError(_WRONG_TYPE, f"field not found, expected type {wanted}")
    found = type_name_of(info[name])
    if found != wanted:
        raise CommandError(_WRONG_TYPE, f"wrong type for field ({name}) {found} != {wanted}")
    return info[name]


def _object(info: Info, name: str) -> dict[str, Any]:
    value = info.get(name)
    if not isinstance(value, Mapping | list):
        raise CommandError(_NOT_AN_OBJECT, f"invalid parameter: expected an object ({name if name in info else ''})")
    return _document(value)


def _document(value: object) -> dict[str, Any]:
    """Return a document; an array counts as one, with its positions as names."""
    if isinstance(value, list):
        return {str(position): each for position, each in enumerate(value)}
    assert isinstance(value, Mapping)
    return dict(value)


def _text_or_empty(info: Info, name: str) -> str:
    value = info.get(name)
    return value if is_string(value) else ""


def _struct(info: Info, struct: str, types: Mapping[str, str], optional: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a structure of MongoDB's definitions; others are ignored."""
    for name, wanted in {**optional, **types}.items():
        if name not in info:
            if name in types:
                raise missing_field(f"{struct}.{name}")
        elif type_name_of(info[name]) != wanted:
            raise wrong_type(f"{struct}.{name}", type_of(info[name]), wanted)
    return {name: info[name] for name in {**optional, **types} if name in info}


# Codes


def _strings(*names: str) -> Parse:
    return lambda info: {name: _typed(info, name, "string") for name in names}


def _objects(*names: str) -> Parse:
    return lambda info: {name: _object(info, name) for name in names}


def _refused(code: int, message: str) -> Parse:
    def parse(_: Info) -> dict[str, Any]:
        raise CommandError(code, message)

    return parse


def _duplicate_key(info: Info) -> dict[str, Any]:
    found: dict[str, Any] = {name: _object(info, name) for name in ("keyPattern", "keyValue")}
    return {**found, **{name: info[name] for name in ("foundValue", "collation") if name in info}}


def _stale_config(info: Info) -> dict[str, Any]:
    shard = _typed(info, "shardId", "string")
    if not shard:
        raise CommandError(ErrorCode.NoSuchKey, "The shardId field is missing")
    if "vReceived" not in info:
        raise CommandError(ErrorCode.NoSuchKey, "Expected field vReceived not found.")
    versions = {name: _chunk_version(info[name]) for name in ("vReceived", "vWanted") if name in info}
    return {"ns": _typed(info, "ns", "string"), **versions, "shardId": shard}


def _chunk_version(value: object) -> object:
    if not isinstance(value, Mapping | list):
        found = type_name_of(value)
        if found == "timestamp":
            return {"t": Timestamp(0, 0), "e": ObjectId(b"\0" * 12), "v": value}
        raise CommandError(ErrorCode.TypeMismatch, f"Invalid type {found} for version major and minor part.")
    types = {"t": "timestamp", "e": "objectId", "v": "timestamp"}
    return _struct(_document(value), "_parse60Format", types, {})


def _stale_database(info: Info) -> dict[str, Any]:
    received = _object(info, "vReceived")
    wanted = {"vWanted": _object(info, "vWanted")} if "vWanted" in info else {}
    types = {"timestamp": "timestamp", "lastMod": "int"}
    versions = {
        name: _struct(version, "DatabaseVersion", types, {"uuid": "binData"})
        for name, version in {"vReceived": received, **wanted}.items()
    }
    return {"db": _typed(info, "db", "string"), **versions}


def _resolved_view(info: Info) -> dict[str, Any]:
    if "resolvedView" not in info:
        raise CommandError(40248, "command response expected to have a 'resolvedView' field")
    if not isinstance(info["resolvedView"], Mapping) or not info["resolvedView"]:
        raise CommandError(40249, "resolvedView must be an object")
    return {"resolvedView": info["resolvedView"]}


def _validation_failure(info: Info) -> dict[str, Any]:
    if not isinstance(info.get("errInfo"), Mapping):
        raise CommandError(4878100, "DocumentValidationFailureInfo must have a field 'errInfo' of type object")
    return {"errInfo": info["errInfo"]}


def _uuid_mismatch(info: Info) -> dict[str, Any]:
    uuid = info.get("collectionUUID")
    is_uuid = isinstance(uuid, Binary) and uuid.subtype == 4
    is_gone = "actualCollection" in info and info["actualCollection"] is None
    return {
        "db": _text_or_empty(info, "db"),
        "collectionUUID": uuid if is_uuid else Binary.from_uuid(UUID(int=0)),  # a mongod returns random bytes
        "expectedCollection": _text_or_empty(info, "expectedCollection"),
        "actualCollection": None if is_gone else _text_or_empty(info, "actualCollection"),
    }


def _javascript_failure(info: Info) -> dict[str, Any]:
    stack, original = _typed(info, "stack", "string"), _object(info, "originalError")
    code, message = _typed(original, "code", "int"), _typed(original, "errmsg", "string")
    found = extra_info(code, original) or {}
    return {"stack": stack, "originalError": {"errmsg": message, "code": code, "codeName": code_name(code), **found}}


def _quiesce_time(info: Info) -> dict[str, Any]:
    value: Any = info.get("remainingQuiesceTimeMillis")
    number: Any = value.to_decimal() if isinstance(value, Decimal128) else value
    is_number = isinstance(number, int | float | Decimal) and not isinstance(number, bool) and math.isfinite(number)
    return {"remainingQuiesceTimeMillis": Int64(int(number) if is_number else 0)}


_REQUIRED: Final[Mapping[int, Parse]] = {
    ErrorCode.CannotConvertIndexToUnique: lambda info: {"violations": list(_object(info, "violations").values())},
    ErrorCode.CannotImplicitlyCreateCollection: lambda info: {"ns": _text_or_empty(info, "ns")},
    ErrorCode.ChangeStreamInvalidated: _objects("invalidateToken"),
    ErrorCode.ChangeStreamStartAfterInvalidate: _objects("startAfterInvalidateEvent"),
    ErrorCode.ChangeStreamTopologyChange: _objects("topologyChangeEvent"),
    ErrorCode.CollectionUUIDMismatch: _uuid_mismatch,
    ErrorCode.CommandOnShardedViewNotSupportedOnMongod: _resolved_view,
    ErrorCode.DocumentValidationFailure: _validation_failure,
    ErrorCode.DuplicateKey: _duplicate_key,
    ErrorCode.ForTestingErrorExtraInfo: _refused(40681, "ErrorCodes::ForTestingErrorExtraInfo is only for testing"),
    ErrorCode.ForTestingErrorExtraInfoWithExtraInfoInNamespace: _refused(
        51100, "ErrorCodes::ForTestingErrorExtraInfoWithExtraInfoInNamespace is only for testing"
    ),
    ErrorCode.JSInterpreterFailureWithStack: _javascript_failure,
    ErrorCode.MultipleErrorsOccurred: _refused(
        645200, "The MultipleErrorsOccurred error should never be used for intra-cluster communication"
    ),
    ErrorCode.NonRetryableTenantMigrationConflict: _strings("tenantId"),
    ErrorCode.ShardCannotRefreshDueToLocksHeld: _strings("nss"),
    ErrorCode.ShardInvalidatedForTargeting: _strings("nss"),
    ErrorCode.StaleConfig: _stale_config,
    ErrorCode.StaleDbVersion: _stale_database,
    ErrorCode.TenantMigrationConflict: _strings("tenantId"),
    ErrorCode.TxnRetryCounterTooOld: lambda info: {"txnRetryCounter": _typed(info, "txnRetryCounter", "int")},
    ErrorCode.WouldChangeOwningShard: lambda info: {
        **{name: _object(info, name) for name in ("preImage", "postImage")},
        "shouldUpsert": _typed(info, "shouldUpsert", "bool"),
    },
}
"""Codes of errors that must have extra information."""

_OPTIONAL: Final[Mapping[int, Parse]] = {
    ErrorCode.ShutdownInProgress: _quiesce_time,
    ErrorCode.StaleEpoch: lambda info: {"ns": info["ns"]} if is_string(info.get("ns")) else {},
}


FAIL_COMMAND: Final = "failCommand"

_INT32_RANGE: Final = 2**32

_NEVER_FAILS: Final = "configureFailPoint"
"""Command that never fails, because otherwise a fail point might be impossible to turn off."""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command that is about to run.

    Attributes:
        app_name: the client's application name, "" if it sent none.
        thread_name: the name of the client's connection, as ``currentOp`` shows it.
    """

    names: Set[str]
    namespace: str
    app_name: str
    thread_name: str = ""


class FailCommandError(CommandError):
    """The error that ``failCommand`` causes.

    Attributes:
        has_given_labels: whether the test specified its labels, so that no others are added.
    """

    has_given_labels = False


class FailCommandCloseError(OSError):
    """The client's connection must be closed."""


def fails_before(data: Mapping[str, Any], call: CommandCall) -> bool:
    """Whether the fail point stops, delays or fails a command before it runs."""
    return _is_affected(data, call) and (
        data.get("closeConnection") is True or data.get("blockConnection") is True or _error_code(data) is not None
    )


def fails_after(data: Mapping[str, Any], call: CommandCall) -> bool:
    """Whether the fail point adds a write concern error to a command's reply."""
    return "writeConcernError" in data and _is_affected(data, call)


def block_seconds(data: Mapping[str, Any]) -> float:
    """Return the delay of a command; InvalidOptions if it is invalid."""
    if data.get("blockConnection") is not True:
        return 0.0
    milliseconds = _integer(data.get("blockTimeMS"))
    if milliseconds is None:
        raise CommandError(ErrorCode.InvalidOptions, "must specify 'blockTimeMS' when 'blockConnection' is true")
    if milliseconds < 0:
        raise CommandError(ErrorCode.InvalidOptions, "'blockTimeMS' must be non-negative")
    return milliseconds / 1000


def raise_failure(data: Mapping[str, Any]) -> None:
    """Fail a command once it has been delayed.

    Raises:
        FailCommandCloseError: the client's connection must be closed.
        FailCommandError: the command fails.
        CommandError: TypeMismatch, ``errorExtraInfo`` is not a document; or as `extra_info`.
    """
    if data.get("closeConnection") is True:
        raise FailCommandCloseError("the fail point failCommand closes the connection")
    code = _error_code(data)
    if not code:
        return
    extra = extra_info(code, _given_info(data))
    error = FailCommandError(code, "Failing command via 'failCommand' failpoint", labels=_labels(data), extra=extra)
    error.has_given_labels = isinstance(data.get("errorLabels"), list)
    raise error


def _given_info(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "errorExtraInfo" not in data:
        return None
    extra = data["errorExtraInfo"]
    if not isinstance(extra, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'"errorExtraInfo" had the wrong type. Expected object, found {type_name_of(extra)}',
        )
    return extra


def reply_with_error(data: Mapping[str, Any], reply: bytes) -> bytes:
    """Add the write concern error before ``ok`` and the labels at the end of a raw reply; 10065 if malformed."""
    labels, error = _labels(data), data["writeConcernError"]
    if not isinstance(error, Mapping | list):
        raise CommandError(_NOT_AN_OBJECT, "invalid parameter: expected an object (writeConcernError)")
    added = encode_elements({"writeConcernError": error})
    elements = []
    for name, (_, start, _, end) in spans(reply):
        if name == b"ok":
            elements.append(added)
        if name != b"writeConcernError":
            elements.append(reply[start:end])
    if labels:
        elements.append(encode_elements({"errorLabels": list(labels)}))
    return from_elements(b"".join(elements))


def _is_affected(data: Mapping[str, Any], call: CommandCall) -> bool:
    if _NEVER_FAILS in call.names:
        return False
    if data.get("namespace", call.namespace) != call.namespace:
        return False
    app_name = data.get("appName", call.app_name)
    if (app_name if is_string(app_name) else "") != call.app_name:
        return False
    if data.get("threadName", call.thread_name) != call.thread_name:
        return False
    commands = data.get("failCommands")
    return "failAllCommands" in data or (
        isinstance(commands, list) and any(each in call.names for each in commands if is_string(each))
    )


def _error_code(data: Mapping[str, Any]) -> int | None:
    """Return the lower 32 bits of the code, where 0 means success. None if it is missing or not a whole number."""
    code = _integer(data.get("errorCode"))
    return None if code is None else (code + _INT32_RANGE // 2) % _INT32_RANGE - _INT32_RANGE // 2


def _integer(value: Any) -> int | None:  # noqa: ANN401 - whatever a client sent
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        return None
    return int(number) if math.isfinite(number) and number % 1 == 0 else None


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    labels = data.get("errorLabels")
    return tuple(labels) if isinstance(labels, list) else ()
