"""Detection of updates that may change a shard key, with MongoDB's rules and errors for them. Pure.

A plain mongod has no shard keys and would change one like any other field. So updates that may do that take another
path (`shardd.operations.key_changing_updates`). A modification stays on the usual path if it names no part of
the shard key, or assigns the values that the query requires anyway.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.shardd.operations.previewed_updates import Preview
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.sharding.targeting.values import effective, is_simple, uncollated_field
from shardwright.sharding.transaction_protocol import OwnerChange
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, NULL, OBJECT, STRING, UNDEFINED, Span, decode_value, index

FULL_KEY_MISSING: Final = 31025
"""MongoDB's error code for changing a shard key with a query that does not contain the whole key."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """An update about to be executed.

    Args:
        is_multi: whether it may update several documents.
        is_retryable: whether it has a transaction number.
    """

    table: RoutingTable
    shard: str
    query: bytes
    is_multi: bool
    is_retryable: bool

    def check(self, preview: Preview) -> None:
        """Refuse a previewed change that MongoDB refuses.

        Raises:
            CommandError: NotSingleValueField, the new key contains an array; 31025; InvalidOptions, a multi-update;
                IllegalOperation, it has no transaction number; WouldChangeOwningShard, another shard owns the new key.
        """
        if preview.after is None:
            return
        new_key = self._key_of(preview.after)
        if preview.before is None:
            self._check_inserted(preview.after, new_key)
        elif new_key != self.table.key_pattern.key_bytes_of_document(preview.before):
            self._check_changed(preview.before, preview.after, new_key)

    def check_change_allowed(self) -> None:
        """Refuse any change of the shard key unless MongoDB allows it (31025, InvalidOptions, IllegalOperation)."""
        if exact_shard_key(self.query, self.table.key_pattern) is None:
            raise CommandError(
                FULL_KEY_MISSING, "Shard key update is not allowed without specifying the full shard key in the query"
            )
        if self.is_multi:
            raise CommandError(
                ErrorCode.InvalidOptions, "Multi-update operations are not allowed when updating the shard key field."
            )
        if not self.is_retryable:
            raise CommandError(
                ErrorCode.IllegalOperation,
                "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.",
            )

    def _check_changed(self, before: bytes, after: bytes, new_key: bytes) -> None:
        self.check_change_allowed()
        if self.table.shard_for_key(new_key) != self.shard:
            raise _would_change_owning_shard(OwnerChange(before, after, is_upsert=False))

    def _check_inserted(self, after: bytes, new_key: bytes) -> None:
        if self.table.shard_for_key(new_key) == self.shard:
            return
        if not self.is_retryable:
            raise CommandError(
                ErrorCode.IllegalOperation,
                "The upsert document could not be inserted onto the shard targeted by the query, since its shard key "
                "belongs on a different shard. Cross-shard upserts are only allowed when running in a transaction or "
                "with retryWrites: true.",
            )
        raise _would_change_owning_shard(OwnerChange(self.query, after, is_upsert=True))

    def _key_of(self, document: bytes) -> bytes:
        try:
            return self.table.key_pattern.key_bytes_of_document(document)
        except CommandError as error:
            if error.code != ErrorCode.ShardKeyNotFound:
                raise
            raise CommandError(
                ErrorCode.NotSingleValueField,
                "After applying the update, a field of the shard key was found to be an array or array descendant.",
            ) from error


def only_one_may_leave() -> CommandError:
    """Return the error for an update that moves a document to another shard from a batch of several statements."""
    return CommandError(
        ErrorCode.InvalidOptions,
        "Document shard key value updates that cause the doc to move shards must be sent with write batch of size 1",
    )


def _would_change_owning_shard(change: OwnerChange) -> CommandError:
    return CommandError(
        ErrorCode.WouldChangeOwningShard,
        "The document we are inserting belongs on a different shard"
        if change.is_upsert
        else "This update would cause the doc to change owning shards",
        extra=change.to_fields(),
    )


_FIRST_NAME_AT = 5  # after the document's length and its first element's type
_ASSIGNING = (b"$set", b"$setOnInsert")
_SETTING_STAGES = (b"$set", b"$addFields")


def is_collated(document: bytes, collation: Span | None, default: Mapping[str, Any] | None) -> bool:
    """Whether a collation other than the simple one is in force.

    Args:
        document: a command or statement.
        collation: its ``collation`` field, if it has one.
    """
    own = decode_value(document, collation) if collation is not None and collation[0] == OBJECT else None
    return not is_simple(effective(own, default))


def may_change_shard_key(
    query: bytes, document: bytes, update: Span, pattern: ShardKeyPattern, *, is_collated: bool
) -> bool:
    """Whether an update could change the shard key of a document that matches ``query``.

    Args:
        update: the span of the modification: operators, a replacement or a pipeline.
        pattern: the `mutable_part` of the shard key.
        is_collated: whether a collation other than the simple one is in force, so that a query for one string may match
            others.
    """
    kind, _, start, end = update
    if kind == ARRAY:
        return any(_stage_touches(document, stage, pattern) for _, stage in rawbson.spans(document, start))
    if kind != OBJECT:
        return False
    if not document.startswith(b"$", start + _FIRST_NAME_AT):
        return not _keeps_key(query, document[start:end], pattern, is_collated=is_collated)
    if all(document.find(field.path[0], start, end) < 0 for field in pattern.fields):
        return False  # nearly every update: no path in it can begin with the name of such a field
    assigned = _assigned_fields(document, start, pattern)
    if not assigned:
        return assigned is None
    return not _match_required(query, document, assigned, pattern, is_collated=is_collated)


def names_no_part(document: bytes, update: Span, pattern: ShardKeyPattern) -> bool:
    """Whether a modification consists of operators that name no part of the shard key, whatever its values.

    Args:
        update: the span of the modification.
        pattern: the `mutable_part` of the shard key.

    Raises:
        InvalidBSONError: the document is malformed.
    """
    kind, _, start, _ = update
    if kind != OBJECT or not document.startswith(b"$", start + _FIRST_NAME_AT):
        return False
    if any(operator == b"$rename" for operator, _ in rawbson.spans(document, start)):
        return False
    return _assigned_fields(document, start, pattern) == {}


def _required_key(query: bytes, pattern: ShardKeyPattern, *, is_collated: bool) -> bytes | None:
    """Return the shard key that all matching documents share, or None; Overflow if a value is nested too deeply."""
    key = exact_shard_key(query, pattern)
    if key is None or (is_collated and uncollated_field(pattern, key) is not None):
        return None
    return key


def _keeps_key(query: bytes, replacement: bytes, pattern: ShardKeyPattern, *, is_collated: bool) -> bool:
    """Whether a replacement has the shard key that the query requires."""
    try:
        wanted = _required_key(query, pattern, is_collated=is_collated)
        if wanted is None or wanted != pattern.extract_from_document(replacement):
            return False
        fields = index(replacement)
        return not any(_matches_undefined(field.find_in(replacement, fields)) for field in pattern.fields)
    except CommandError:
        return False  # for instance an array, which the preview will refuse


def _matches_undefined(span: Span | None) -> bool:
    """Whether a query for a value also matches documents where it is undefined, which is a different shard key."""
    return span is None or span[0] in (NULL, UNDEFINED)


def _assigned_fields(document: bytes, start: int, pattern: ShardKeyPattern) -> dict[bytes, Span] | None:
    """Return the values that operators assign to shard key fields; None if they may change one in another way."""
    assigned: dict[bytes, Span] = {}
    for operator, operand in rawbson.spans(document, start):
        if operand[0] != OBJECT:
            continue
        for path, value in rawbson.spans(document, operand[2]):
            touched = _touched_field(path, pattern)
            if operator == b"$rename" and value[0] == STRING and touched is None:
                touched = _touched_field(document[value[2] + 4 : value[3] - 1], pattern)
            if touched is None:
                continue
            if operator not in _ASSIGNING or path != touched.name:
                return None
            assigned[path] = value
    return assigned


def _match_required(
    query: bytes, document: bytes, assigned: dict[bytes, Span], pattern: ShardKeyPattern, *, is_collated: bool
) -> bool:
    """Whether the values assigned to shard key fields are the values that the query requires."""
    try:
        wanted = _required_key(query, pattern, is_collated=is_collated)
        if wanted is None:
            return False
        found = index(wanted)
        for field in pattern.fields:
            value = assigned.get(field.name)
            if value is None:
                continue
            kind, raw = field.key_value(document, value)
            span = found[field.name]
            if value[0] == ARRAY or _matches_undefined(value) or (kind, raw) != (span[0], wanted[span[2] : span[3]]):
                return False
    except CommandError:
        return False
    return True


def _touched_field(path: bytes, pattern: ShardKeyPattern) -> ShardKeyField | None:
    """Return the shard key field that a path denotes, contains, or is part of."""
    parts = path.split(b".")
    for field in pattern.fields:
        # A positional part ($, $[], $[id]) may stand for any name.
        if all(left == right or left.startswith(b"$") for left, right in zip(parts, field.path, strict=False)):
            return field
    return None


def _stage_touches(document: bytes, stage: Span, pattern: ShardKeyPattern) -> bool:
    if stage[0] != OBJECT:
        return False
    for name, argument in rawbson.spans(document, stage[2]):
        if name in _SETTING_STAGES and argument[0] == OBJECT:
            paths: Iterator[bytes] = (path for path, _ in rawbson.spans(document, argument[2]))
        elif name == b"$unset":
            paths = _strings(document, argument)
        else:
            return True
        if any(_touched_field(path, pattern) for path in paths):
            return True
    return False


def _strings(document: bytes, value: Span) -> Iterator[bytes]:
    """Yield a string, or the strings in an array."""
    if value[0] == STRING:
        yield document[value[2] + 4 : value[3] - 1]
    elif value[0] == ARRAY:
        for _, each in rawbson.spans(document, value[2]):
            yield from _strings(document, each)
