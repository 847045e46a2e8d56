"""The ``aggregate`` commands that the halves of a pipeline become."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.pipelines.stages import WRITING
from shardwright.router.reads.aggregate import PIPELINE
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    STRING,
    append,
    array_of_documents,
    element,
    encode_elements,
    from_elements,
    index,
    spans,
    string_value,
    without,
)

SESSION: Final = b"lsid"
_TRANSACTION: Final = frozenset({b"txnNumber", b"autocommit", b"startTransaction"})
API_PARAMETERS: Final = frozenset({b"apiVersion", b"apiStrict", b"apiDeprecationErrors"})
"""The client's, which the halves do without: their internal fields and stages belong to no version of the API."""

_FOR_WRITES: Final = frozenset({b"writeConcern", b"bypassDocumentValidation"})
_REPLACED: Final = frozenset({PIPELINE, b"cursor", b"explain"})
_OF_THE_COLLECTION: Final = frozenset({b"hint", b"collation"})

_CONCERNS: Final[Mapping[str, Any]] = {"readConcern": {}, "writeConcern": {"w": "majority"}}
"""MongoDB's defaults."""

NEEDS_MERGE: Final = encode_elements({"fromMongos": True, "needsMerge": True})
"""The elements that make a shard return partial states and sort keys."""

NO_DOCUMENTS: Final = 0
"""The ``batchSize`` of a cursor that a mongod will read: it refuses documents of the reply that opened the cursor."""


def runtime_constants(now: datetime, cluster_time: Timestamp) -> bytes:
    """The element that gives ``$$NOW`` and ``$$CLUSTER_TIME`` the same value everywhere."""
    constants = {"localNow": now.astimezone(UTC), "clusterTime": cluster_time}
    return encode_elements({"runtimeConstants": constants})


def shards_half(body: bytes, stages: Sequence[Stage], constants: bytes, *, needs_merge: bool) -> bytes:
    """The command for each shard, whose cursor a mongod will read.

    Args:
        body: the client's command.
        stages: the shards' part.
        constants: from `runtime_constants`.
        needs_merge: the results are partial states, or have their sort keys.
    """
    rest = without(body, _REPLACED | _TRANSACTION | API_PARAMETERS | _FOR_WRITES)
    cursor = encode_elements({"cursor": {"batchSize": NO_DOCUMENTS}})
    return append(rest, _pipeline(stages) + cursor + constants + (NEEDS_MERGE if needs_merge else b""))


def merging_half(
    body: bytes,
    merge_cursors: bytes,
    stages: Sequence[Stage],
    constants: bytes,
    collation: Mapping[str, Any],
    *,
    is_read_by_mongod: bool = False,
) -> bytes:
    """The command for the merging shard.

    Args:
        body: the client's command.
        merge_cursors: the raw ``$mergeCursors``.
        stages: the merger's part.
        constants: from `runtime_constants`.
        collation: of the aggregation, which cannot be that of the merging shard's collection.
        is_read_by_mongod: a mongod will read the results.
    """
    fields: dict[str, Any] = {"collation": dict(collation)}
    removed = _OF_THE_COLLECTION | API_PARAMETERS | frozenset({PIPELINE})
    if any(stage.name in WRITING for stage in stages):
        removed |= {b"$readPreference"}
    else:
        removed |= _FOR_WRITES
        # With it, a $merge in a nested pipeline, which mongod refuses, would be refused for what a mongos adds to one.
        if not any(b"$merge\0" in stage.raw for stage in stages):
            fields["fromMongos"] = True
    if is_read_by_mongod:
        removed |= _TRANSACTION | {b"cursor"}
        fields["cursor"] = {"batchSize": NO_DOCUMENTS}
    source = Stage("$mergeCursors", merge_cursors, (0, 0, 0, 0))
    half = append(without(body, removed), _pipeline((source, *stages)) + encode_elements(fields) + constants)
    return _on_a_collection(half)


def with_concerns(command: bytes) -> bytes:
    """The command with a read and a write concern, which a genuine shard requires of a mongos."""
    given = index(command)
    return append(
        command, encode_elements({name: value for name, value in _CONCERNS.items() if name.encode() not in given})
    )


def _on_a_collection(command: bytes) -> bytes:
    """The command, on a collection if it is on none: ``$mergeCursors`` requires one, which need not exist."""
    _, (kind, _, _, end) = next(spans(command))
    if kind == STRING:
        return command
    return from_elements(element(b"aggregate", STRING, string_value("merged")) + command[end:-1])


def _pipeline(stages: Sequence[Stage]) -> bytes:
    return element(PIPELINE, ARRAY, array_of_documents([stage.raw for stage in stages]))
