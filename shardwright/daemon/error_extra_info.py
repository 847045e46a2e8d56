"""Extra information of errors, as ``failCommand`` is given it: parsed by the code of the error, as a mongod does.

A mongod constructs the error from the fields that it knows for the code, refuses the fields that have another type, and
returns nothing else. All this was read off a mongod 6.0.5.
"""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import missing_field, wrong_type
from shardwright.wire.rawbson import is_string
from shardwright.wire.type_names import type_name_of, type_of

_MISSING_INFO: Final = 40671
_WRONG_TYPE: Final = 13111
_NOT_AN_OBJECT: Final = 10065

Info = Mapping[str, Any]
Parse = Callable[[Info], dict[str, Any]]


def extra_info(code: int, info: object) -> dict[str, Any] | None:
    """The fields that an error has beside its code; None for a code that has none.

    Args:
        code: the code of the error.
        info: the given information; None if none is given.

    Raises:
        CommandError: 40671, the code must have some; TypeMismatch, it is not a document; or what the mongod says of its
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
    """A document; an array counts as one, with its positions as names."""
    if isinstance(value, list):
        return {str(position): each for position, each in enumerate(value)}
    assert isinstance(value, Mapping)
    return dict(value)


def _text_or_empty(info: Info, name: str) -> str:
    value = info.get(name)
    return value if is_string(value) else ""


def _struct(info: Info, struct: str, types: Mapping[str, str], optional: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a structure of MongoDB's definitions; others are ignored."""
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
