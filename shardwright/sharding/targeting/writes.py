"""Targeting of each statement of a write on a sharded collection.

The rules and the texts of errors are MongoDB 6.0's. Inserts are targeted by their document, upserts by the exact shard
key in their filter, other updates by their filter or replacement, single deletes by the exact key. A statement that
affects one document by exact ``_id`` may be broadcast.

Filters are validated by the shards they are sent to. A filter with an unknown operator does not fix the shard key, so
its statement may not be targetable at all: `unknown_operator` finds the real error.
"""

from collections.abc import Mapping, Set
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from bson.objectid import ObjectId

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key, has_exact_id, is_operator_object
from shardwright.sharding.targeting.statements import (
    DeleteStatement,
    UpdateStatement,
    UpdateStyle,
    filter_of_delete,
    filter_of_update,
    shard_of_measurement,
)
from shardwright.sharding.targeting.targets import (
    CollectionPlacement,
    beyond_all_chunks,
    target_filter,
    target_shard_key,
)
from shardwright.sharding.targeting.values import effective, is_collection_default, is_simple
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, Span, is_string

_LOGICAL: Final = frozenset({b"$and", b"$or", b"$nor"})

_TOP_LEVEL: Final = _LOGICAL | {
    b"$alwaysFalse",
    b"$alwaysTrue",
    b"$comment",
    b"$expr",
    b"$jsonSchema",
    b"$sampleRate",
    b"$text",
    b"$where",
}

_OF_FIELDS: Final = frozenset(
    b"$" + name
    for name in (
        b"all bitsAllClear bitsAllSet bitsAnyClear bitsAnySet elemMatch encryptedBetween eq exists geoIntersects "
        b"geoNear geoWithin gt gte in lt lte maxDistance minDistance mod ne near nearSphere nin not options regex size "
        b"type uniqueDocs within"
    ).split()
)

_NESTED: Final = frozenset({b"$not", b"$elemMatch"})
_REFERENCE: Final = frozenset({b"$ref", b"$id", b"$db"})
"""Fields of a DBRef, which is a value."""

_INTERNAL: Final = b"$_internal"


def unknown_operator(filter_document: bytes) -> CommandError | None:
    """Return MongoDB's error for the first unknown operator; None if all are known."""
    return _in_document(filter_document, 0)


def _in_document(document: bytes, start: int) -> CommandError | None:
    for name, span in rawbson.spans(document, start):
        found = _in_logical(document, name, span) if name.startswith(b"$") else _in_value(document, span)
        if found is not None:
            return found
    return None


def _in_logical(document: bytes, name: bytes, span: Span) -> CommandError | None:
    if name not in _TOP_LEVEL and not name.startswith(_INTERNAL):
        return CommandError(
            ErrorCode.BadValue,
            f"unknown top level operator: {name.decode(errors='replace')}. If you have a field name that starts with "
            "a '$' symbol, consider using $getField or $setField.",
        )
    if name in _LOGICAL and span[0] == ARRAY:
        for _, branch in rawbson.spans(document, span[2]):
            found = _in_document(document, branch[2]) if branch[0] == OBJECT else None
            if found is not None:
                return found
    return None


def _in_value(document: bytes, span: Span) -> CommandError | None:
    if not is_operator_object(document, span):
        return None
    for name, operand in rawbson.spans(document, span[2]):
        if name in _REFERENCE:
            return None
        if name not in _OF_FIELDS and not name.startswith(_INTERNAL):
            return CommandError(ErrorCode.BadValue, f"unknown operator: {name.decode(errors='replace')}")
        if name in _NESTED and operand[0] == OBJECT:
            is_filter = name == b"$elemMatch" and not is_operator_object(document, operand)
            found = _in_document(document, operand[2]) if is_filter else _in_value(document, operand)
            if found is not None:
                return found
    return None


class Broadcast(Enum):
    """The destination of a statement that more than one shard may have to execute."""

    ALL_SHARDS = "all shards"


ALL_SHARDS: Final = Broadcast.ALL_SHARDS

Destination: TypeAlias = str | Broadcast | CommandError
"""One shard; all shards of the cluster, which then ignore versions; or the error if there is no destination."""

Collation: TypeAlias = Mapping[str, Any] | None

_ID_PATTERN: Final = ShardKeyPattern.from_mapping({"_id": 1})
_NO_EXACT_KEY: Final = "could not extract exact shard key"


class Destinations(NamedTuple):
    """Destinations of the statements of a batch, in their order.

    ``updates_by_id`` is the number of broadcast updates of one document, which only an exact ``_id`` allows.
    """

    by_statement: list[Destination]
    has_errors: bool
    has_broadcasts: bool
    updates_by_id: int = 0

    @classmethod
    def of(cls, found: list[Destination]) -> "Destinations":
        """Collect destinations, detecting errors and broadcasts."""
        return cls(found, any(isinstance(each, CommandError) for each in found), ALL_SHARDS in found)


def target_inserts(documents: list[bytes], table: CollectionPlacement) -> Destinations:
    """Return the shards that own the shard keys of documents."""
    pattern = table.key_pattern
    key_bytes = pattern.key_bytes_of_document
    shard_for_key = table.shard_for_key
    global_max = pattern.global_max_bytes()
    found: list[Destination] = []
    has_errors = False
    for document in documents:
        try:
            key = key_bytes(document)
            if key == global_max:
                raise beyond_all_chunks(pattern.global_max(), str(table.namespace))
            found.append(shard_for_key(key))
        except CommandError as error:
            found.append(error)
            has_errors = True
    return Destinations(found, has_errors, has_broadcasts=False)


def target_measurements(
    statement: bytes | UpdateStatement | DeleteStatement, fields: TimeSeriesFields, table: CollectionPlacement
) -> Destination:
    """Target an update, a delete, or an inserted measurement of a sharded time-series collection."""
    try:
        if isinstance(statement, bytes):
            return shard_of_measurement(statement, fields, table)
        if isinstance(statement, UpdateStatement):
            filter_document = filter_of_update(statement, fields, table.key_pattern)
        else:
            filter_document = filter_of_delete(statement, fields)
    except CommandError as error:
        return error
    shards = _shards_of_filter(filter_document, statement.collation, table)
    return next(iter(shards)) if len(shards) == 1 else ALL_SHARDS


def with_ids(documents: list[bytes], pattern: ShardKeyPattern) -> list[bytes] | None:
    """Add a new ``_id`` to documents without one, if ``_id`` is part of the key; None if no document needs it.

    Elsewhere mongod creates the ``_id``, as it does for its own clients.
    """
    if all(field.path[0] != b"_id" for field in pattern.fields):
        return None
    lacking = [position for position, document in enumerate(documents) if not _has_id(document)]
    if not lacking:
        return None
    completed = list(documents)
    for position in lacking:
        elements = rawbson.element(b"_id", rawbson.OBJECT_ID, ObjectId().binary)
        completed[position] = rawbson.from_elements(elements + documents[position][4:-1])
    return completed


def target_update(update: UpdateStatement, table: CollectionPlacement) -> Destination:
    """Target an update."""
    if update.style is UpdateStyle.MIXED:
        return CommandError(
            ErrorCode.UnsupportedFormat,
            f"update document {document_text(update.replacement)} has mixed $operator and non-$operator style fields",
        )
    if update.style is UpdateStyle.REPLACEMENT and update.is_multi:
        return CommandError(ErrorCode.InvalidOptions, "Replacement-style updates cannot be {multi:true}")
    if update.is_upsert:
        return _shard_of_upsert(update, table)
    shards = _shards_of_filter(update.filter, update.collation, table)
    if len(shards) == 1:
        return next(iter(shards))
    if update.style is UpdateStyle.REPLACEMENT:
        return _shard_of_replacement(update, table)
    if not update.is_multi and not _is_exact_id(update.filter, update.collation, table):
        return unknown_operator(update.filter) or CommandError(
            ErrorCode.InvalidOptions,
            "A {multi:false} update on a sharded collection must contain an exact match on _id (and have the "
            "collection default collation) or target a single shard (and have the simple collation), but this update "
            f"targeted {len(shards)} shards. Update request: {update}, shard key pattern: {table.key_pattern}",
        )
    return ALL_SHARDS


def target_delete(delete: DeleteStatement, table: CollectionPlacement) -> Destination:
    """Target a delete."""
    exact = _exact_shard(delete.filter, delete.collation, table)
    if is_string(exact):
        return exact
    if delete.is_single and not _is_exact_id(delete.filter, delete.collation, table):
        return unknown_operator(delete.filter) or CommandError(
            ErrorCode.ShardKeyNotFound,
            "A single delete on a sharded collection must contain an exact match on _id (and have the collection "
            "default collation) or contain the shard key (and have the simple collation). Delete request: "
            f"{delete}, shard key pattern: {table.key_pattern}",
        )
    shards = _shards_of_filter(delete.filter, delete.collation, table)
    return next(iter(shards)) if len(shards) == 1 else ALL_SHARDS


def target_find_and_modify(query: bytes, collation: Collation, table: CollectionPlacement) -> str:
    """Return the shard of a ``findAndModify``.

    Raises ShardKeyNotFound if the query does not fix the shard key, or only under another collation, or no chunk can
    contain the key; or the error of `unknown_operator`, if the query does not fix the key.
    """
    key = exact_shard_key(query, table.key_pattern)
    if key is None:
        raise unknown_operator(query) or CommandError(
            ErrorCode.ShardKeyNotFound, "Query for sharded findAndModify must contain the shard key"
        )
    return target_shard_key(key, table, str(table.namespace), simple_collation=_is_simple(collation, table))


def _exact_shard(filter_document: bytes, collation: Collation, table: CollectionPlacement) -> str | CommandError | None:
    """Return the shard of the key that a filter fixes, or the error of its targeting; None if it fixes no key."""
    key = exact_shard_key(filter_document, table.key_pattern)
    if key is None:
        return None
    try:
        return target_shard_key(key, table, str(table.namespace), simple_collation=_is_simple(collation, table))
    except CommandError as error:
        return error


def _shard_of_upsert(update: UpdateStatement, table: CollectionPlacement) -> str | CommandError:
    """Return the shard of the key that the filter fixes: the inserted document will have it too."""
    context = "Failed to target upsert by query"
    exact = _exact_shard(update.filter, update.collation, table) or unknown_operator(update.filter)
    if exact is None:
        return CommandError(ErrorCode.ShardKeyNotFound, f"{context} :: {_NO_EXACT_KEY}")
    if isinstance(exact, CommandError):
        return CommandError(exact.code, f"{context} :: caused by :: {exact.message}")
    return exact


def _shard_of_replacement(update: UpdateStatement, table: CollectionPlacement) -> str | CommandError:
    """Return the shard that owns a document's replacement, which gets the filter's ``_id`` if it has none."""
    context = "Failed to target update by replacement document"
    replacement = update.replacement
    if not _has_id(replacement):
        id_of_filter = exact_shard_key(update.filter, _ID_PATTERN)
        if id_of_filter is not None:
            replacement = rawbson.append(replacement, id_of_filter[4:-1])
    try:
        key = table.key_pattern.extract_from_document(replacement)
    except CommandError:
        return CommandError(ErrorCode.ShardKeyNotFound, f"{context} :: {_NO_EXACT_KEY}")
    try:
        return target_shard_key(key, table, str(table.namespace), simple_collation=_is_simple(update.collation, table))
    except CommandError as error:
        return CommandError(error.code, f"{context} :: caused by :: {error.message}")


def _is_simple(collation: Collation, table: CollectionPlacement) -> bool:
    """Whether the effective collation compares strings as bytes."""
    return is_simple(effective(collation, table.collection.default_collation))


def _shards_of_filter(filter_document: bytes, collation: Collation, table: CollectionPlacement) -> Set[str]:
    return target_filter(filter_document, table, simple_collation=_is_simple(collation, table))


def _is_exact_id(filter_document: bytes, collation: Collation, table: CollectionPlacement) -> bool:
    same = is_collection_default(collation, table.collection.default_collation)
    return has_exact_id(filter_document, collection_collation=same)


def _has_id(document: bytes) -> bool:
    """Whether a document has an ``_id``, which nearly always comes first."""
    return document.startswith(b"_id\0", 5) or any(name == b"_id" for name, _ in rawbson.spans(document))
