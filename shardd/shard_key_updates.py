"""Which updates may change the shard key of a document. Pure, and cheap for those that do not.

A plain mongod knows no shard keys and would change one like any other field, so updates that may are taken out of the
usual path (`shardd.key_changing_writes`). A modification that names no part of the key, or assigns what the query has
demanded already, is let through.
"""

from collections.abc import Iterator

from sharding.shard_key import ShardKeyPattern
from sharding.shard_key_field import ShardKeyField
from sharding.targeting.exact_key import exact_shard_key
from wire import rawbson
from wire.errors import CommandError
from wire.rawbson import ARRAY, OBJECT, STRING, Span

_ASSIGNING = (b"$set", b"$setOnInsert")
_SETTING_STAGES = (b"$set", b"$addFields")


def mutable_part(pattern: ShardKeyPattern) -> ShardKeyPattern | None:
    """The fields of a shard key that mongod lets change: all but those in ``_id``. None if there are none."""
    fields = tuple(each for each in pattern.fields if each.path[0] != b"_id")
    return ShardKeyPattern(pattern.document, fields) if fields else None


def may_change_shard_key(query: bytes, document: bytes, update: Span, pattern: ShardKeyPattern) -> bool:
    """Whether an update could give a document that matches ``query`` another shard key.

    Args:
        query: the filter of the update.
        document: what contains the modification.
        update: where in it the modification is: operators, a replacement or a pipeline.
        pattern: the `mutable_part` of the shard key.
    """
    kind, _, start, end = update
    if kind == ARRAY:
        return any(_stage_touches(document, stage, pattern) for _, stage in rawbson.spans(document, start))
    if kind != OBJECT:
        return False
    first = next(iter(rawbson.spans(document, start)), None)
    if first is None or not first[0].startswith(b"$"):
        return not _keeps_key(query, document[start:end], pattern)
    return _operators_may_change(query, document, start, pattern)


def _keeps_key(query: bytes, replacement: bytes, pattern: ShardKeyPattern) -> bool:
    """Whether a replacement has the shard key that the query demands."""
    try:
        wanted = exact_shard_key(query, pattern)
        return wanted is not None and wanted == pattern.extract_from_document(replacement)
    except CommandError:
        return False  # an array, say: it is looked at more closely on the other path


def _operators_may_change(query: bytes, document: bytes, start: int, pattern: ShardKeyPattern) -> bool:
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
                return True
            assigned[path] = value
    return bool(assigned) and not _are_as_demanded(query, document, assigned, pattern)


def _are_as_demanded(query: bytes, document: bytes, assigned: dict[bytes, Span], pattern: ShardKeyPattern) -> bool:
    """Whether the values assigned to fields of the key are those that the query demands of them."""
    try:
        wanted = exact_shard_key(query, pattern)
        if wanted is None:
            return False
        found = rawbson.index(wanted)
        for field in pattern.fields:
            value = assigned.get(field.name)
            if value is None:
                continue
            kind, raw = field.key_value(document, value)
            span = found[field.name]
            if value[0] == ARRAY or (kind, raw) != (span[0], wanted[span[2] : span[3]]):
                return False
    except CommandError:
        return False
    return True


def _touched_field(path: bytes, pattern: ShardKeyPattern) -> ShardKeyField | None:
    """The field of the shard key that a path is, contains, or lies in."""
    parts = path.split(b".")
    for field in pattern.fields:
        # A positional part ($, $[], $[id]) or an array index may stand for whatever is there.
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
    """A string, or the strings in an array."""
    if value[0] == STRING:
        yield document[value[2] + 4 : value[3] - 1]
    elif value[0] == ARRAY:
        for _, each in rawbson.spans(document, value[2]):
            yield from _strings(document, each)
