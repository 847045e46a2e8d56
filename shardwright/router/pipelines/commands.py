"""The commands of an aggregation: the shards that it targets, the shards' and the merger's part, and their ``explain``.

**Targets.** The primary shard's view definition gives a read of a time-series collection its bucket span. mongod uses
the span to skip buckets that cannot match, and a change of the granularity widens it. So the router takes it from the
catalog instead, in exactly the version that the shards' requests carry, as in mongos.

**The merger.** The merging mongod reads the cursors on the other shards through ``$mergeCursors``. It must have read
all of them before it inserts the first document of a ``$out``, or of a ``$merge`` with ``whenMatched: "fail"``. A
mongod that is not a genuine shard counts its operation as done after the first batch. If it then waits for another
server, it crashes (``Invariant failure !isDone()`` in ``curop.h``, seen on 6.0.5). Such a pipeline therefore gets a
``$sort``, which returns nothing before it has read everything. A sort by a field that no document has keeps the order.

``explain`` names a merger as mongos 6.0 does, which has an aggregation engine (``tests/router/test_split_oracle.py``
compares). Here a shard's mongod runs stages that need such an engine.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.router.pipelines.stages import WRITING, Place, place_of
from shardwright.router.placement.routing_info import CollectionRouting, shards_for_read
from shardwright.router.reads.aggregations import PIPELINE
from shardwright.router.reads.views import with_body
from shardwright.sharding.pipelines.pipeline import UNPACK_BUCKET, Pipeline, Stage, leading_filter
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    append,
    array_of_documents,
    decode_document,
    element,
    encode_document,
    encode_elements,
    from_elements,
    index,
    spans,
    string_value,
    with_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.request_validation import API_PARAMETERS

SESSION: Final = b"lsid"
_TRANSACTION: Final = frozenset({b"txnNumber", b"autocommit", b"startTransaction"})
_OF_THE_API: Final = frozenset(API_PARAMETERS)
"""The client's parameters, which the parts omit: their internal fields and stages are outside of the Stable API."""

_FOR_WRITES: Final = frozenset({b"writeConcern", b"bypassDocumentValidation"})
_REPLACED: Final = frozenset({PIPELINE, b"cursor", b"explain"})
_OF_THE_COLLECTION: Final = frozenset({b"hint", b"collation"})

_CONCERNS: Final[Mapping[str, Any]] = {"readConcern": {}, "writeConcern": {"w": "majority"}}
"""MongoDB's defaults."""

NEEDS_MERGE: Final = encode_elements({"fromMongos": True, "needsMerge": True})
"""Elements that make a shard return partial states and sort keys."""

NO_DOCUMENTS: Final = 0
"""The ``batchSize`` of a cursor that a mongod will read, which refuses documents in the reply that opens it."""


def shards_for_pipeline(
    routing: CollectionRouting,
    pipeline: Pipeline,
    collation: Mapping[str, Any] | None,
    time: Timestamp | None = None,
) -> tuple[str, ...]:
    """Return the shards that a pipeline reads: those its filter targets, or all for statistics of each shard."""
    if place_of(pipeline.first) is Place.DESCRIBES_SHARD:
        return tuple(sorted(routing.shards))
    fields = None if routing.table is None else routing.table.collection.time_series
    return shards_for_read(routing, leading_filter(pipeline, fields), collation, time)


_SPAN: Final = "bucketMaxSpanSeconds"


def with_present_span(request: Request, pipeline: Pipeline, routing: CollectionRouting) -> Request | None:
    """Put the routing table's bucket span into an aggregation; return None if it has that span or reads no buckets."""
    fields = None if routing.table is None else routing.table.collection.time_series
    if fields is None or UNPACK_BUCKET not in pipeline.names:
        return None
    at = pipeline.names.index(UNPACK_BUCKET)
    unpacking, seconds = pipeline.stages[at].specification, fields.span_ms // 1000
    if unpacking.get(_SPAN, seconds) == seconds:
        return None
    stages = [stage.raw for stage in pipeline.stages]
    stages[at] = encode_document({UNPACK_BUCKET: {**unpacking, _SPAN: seconds}})
    return with_body(request, with_value(request.body, request.fields[PIPELINE], array_of_documents(stages)))


def runtime_constants(now: datetime, cluster_time: Timestamp) -> bytes:
    """Encode the element that gives ``$$NOW`` and ``$$CLUSTER_TIME`` the same value on all servers."""
    constants = {"localNow": now.astimezone(UTC), "clusterTime": cluster_time}
    return encode_elements({"runtimeConstants": constants})


def shards_command(body: bytes, stages: Sequence[Stage], constants: bytes, *, needs_merge: bool) -> bytes:
    """Build the command for each shard, whose cursor a mongod will read.

    Args:
        constants: from `runtime_constants`.
        needs_merge: whether the results are partial states, or have their sort keys.
    """
    rest = without(body, _REPLACED | _TRANSACTION | _OF_THE_API | _FOR_WRITES)
    cursor = encode_elements({"cursor": {"batchSize": NO_DOCUMENTS}})
    return append(rest, _pipeline(stages) + cursor + constants + (NEEDS_MERGE if needs_merge else b""))


def merger_command(
    body: bytes,
    merge_cursors: bytes,
    stages: Sequence[Stage],
    constants: bytes,
    collation: Mapping[str, Any],
    *,
    is_read_by_mongod: bool = False,
) -> bytes:
    """Build the command for the merging shard.

    Args:
        constants: from `runtime_constants`.
        collation: the aggregation's, because the merging shard's collection does not supply it.
        is_read_by_mongod: whether a mongod will read the results.
    """
    fields: dict[str, Any] = {"collation": dict(collation)}
    removed = _OF_THE_COLLECTION | _OF_THE_API | frozenset({PIPELINE})
    if any(stage.name in WRITING for stage in stages):
        removed |= {b"$readPreference"}
    else:
        removed |= _FOR_WRITES
        # With fromMongos, the error for a $merge in a nested pipeline would be about a field that mongos adds to
        # $merge.
        if not any(b"$merge\0" in stage.raw for stage in stages):
            fields["fromMongos"] = True
    if is_read_by_mongod:
        removed |= _TRANSACTION | {b"cursor"}
        fields["cursor"] = {"batchSize": NO_DOCUMENTS}
    source = Stage("$mergeCursors", merge_cursors, (0, 0, 0, 0))
    part = append(without(body, removed), _pipeline((source, *stages)) + encode_elements(fields) + constants)
    return _on_a_collection(part)


def with_concerns(command: bytes) -> bytes:
    """Add a read and a write concern, which a genuine shard requires of a mongos."""
    given = index(command)
    return append(
        command, encode_elements({name: value for name, value in _CONCERNS.items() if name.encode() not in given})
    )


def _on_a_collection(command: bytes) -> bytes:
    """Put a collectionless command on a collection; ``$mergeCursors`` requires one, which need not exist."""
    _, (kind, _, _, end) = next(spans(command))
    if kind == STRING:
        return command
    return from_elements(element(b"aggregate", STRING, string_value("merged")) + command[end:-1])


def _pipeline(stages: Sequence[Stage]) -> bytes:
    return element(PIPELINE, ARRAY, array_of_documents([stage.raw for stage in stages]))


@dataclass(frozen=True, slots=True)
class Remote:
    """An open cursor for a mongod to read.

    Attributes:
        address: ``host:port`` of the member that has the cursor.
        cursor: the raw document ``cursor`` of the reply that opened it; the documents of its batch come first.
    """

    shard_id: str
    address: str
    cursor: bytes

    @property
    def raw(self) -> bytes:
        """The entry in ``remotes``."""
        response = element(b"cursor", OBJECT, self.cursor) + encode_elements({"ok": 1.0})
        return from_elements(
            encode_elements({"shardId": self.shard_id, "hostAndPort": self.address})
            + element(b"cursorResponse", OBJECT, from_elements(response))
        )


_NO_USER: Final = Binary(sha256(b"").digest())
"""The ``uid`` of sessions on connections that are not authenticated."""


def merge_cursors(
    remotes: Sequence[Remote],
    namespace: str,
    sort: Mapping[str, int] | None = None,
    session: Mapping[str, Any] | None = None,
    transaction: int | None = None,
) -> bytes:
    """Build the raw stage that reads cursors.

    Args:
        sort: the order in which documents are merged, by their ``$sortKey``; None for any.
        session: the ``lsid`` with which the cursors were opened; None outside a session.
        transaction: the number of the transaction in which they were opened; None outside a transaction.
    """
    specification = (
        encode_elements({} if session is None else {"lsid": {"id": session["id"], "uid": session.get("uid", _NO_USER)}})
        + encode_elements({} if transaction is None else {"txnNumber": Int64(transaction), "autocommit": False})
        + encode_elements({} if sort is None else {"sort": dict(sort)})
        + encode_elements({"compareWholeSortKey": False})
        + element(b"remotes", ARRAY, array_of_documents([remote.raw for remote in remotes]))
        + encode_elements({"nss": namespace, "allowPartialResults": False})
    )
    return from_elements(element(b"$mergeCursors", OBJECT, from_elements(specification)))


_ALLOW_DISK_USE: Final = b"allowDiskUse"
_READ_ALL: Final = Stage("$sort", encode_document({"$sort": {"readBeforeWriting": 1}}), (0, 0, 0, 0))
_READING_ALL: Final = frozenset({"$bucket", "$bucketAuto", "$group", "$sort", "$sortByCount"})


def reading_before_writing(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return the stages of a merger, with a stage that reads everything if the last one inserts.

    Args:
        stages: the stages after ``$mergeCursors``.
    """
    if not stages or not _inserts(stages[-1]) or any(stage.name in _READING_ALL for stage in stages):
        return tuple(stages)
    return (*stages[:-1], _READ_ALL, stages[-1])


def with_disk(body: bytes) -> bytes:
    """Allow disk use for the added sort, regardless of the client's setting for its own stages."""
    return append(without(body, (_ALLOW_DISK_USE,)), encode_elements({_ALLOW_DISK_USE.decode(): True}))


def _inserts(stage: Stage) -> bool:
    if stage.name != "$merge":
        return stage.name == "$out"
    given = stage.specification
    return isinstance(given, dict) and given.get("whenMatched") == "fail"


def explained_split(
    shards_part: Sequence[Stage], merger_part: Sequence[Stage], namespace: str, sort: Mapping[str, int] | None
) -> dict[str, Any]:
    """Return ``splitPipeline``; the merger's part begins with the stage that reads the shards' cursors."""
    merging = {
        **({} if sort is None else {"sort": dict(sort)}),
        "compareWholeSortKey": False,
        "tailableMode": "normal",
        "nss": namespace,
        "allowPartialResults": False,
        "recordRemoteOpWaitTime": False,
    }
    return {
        "shardsPart": [decode_document(stage.raw) for stage in shards_part],
        "mergerPart": [{"$mergeCursors": merging}, *(decode_document(stage.raw) for stage in merger_part)],
    }


_FOR_PRIMARY_SHARD: Final = frozenset({"$graphLookup", "$lookup", "$merge", "$out"})
_FOR_ANY_SHARD: Final = frozenset({"$unionWith"})

_SPILLING: Final = frozenset(
    {
        *("$_internalSetWindowFields", "$bucket", "$bucketAuto", "$count", "$fill", "$group", "$sample"),
        *("$setWindowFields", "$sort", "$sortByCount"),
    }
)
"""Stages that may spill to disk, so that mongos leaves them to a shard."""

_GROUPS: Final = frozenset({"$bucket", "$count", "$sortByCount"})
"""Stages that mongod executes as ``$group`` and others."""

_JOINS: Final = frozenset({"$graphLookup", "$lookup"})
"""Stages that mongos runs itself if they read a sharded collection."""

_ON_SHARDS_ONLY: Final = frozenset({"$geoNear", "$merge", "$out", "$unionWith"})
_ON_SHARD: Final = " must run on a shard"


def merge_type(merger_part: Sequence[Stage], *, may_spill: bool) -> str:
    """Return ``mergeType``: ``mongos``, ``primaryShard`` or ``anyShard``.

    Args:
        merger_part: the stages of ``mergerPart``.
    """
    names = set(_names(decode_document(stage.raw) for stage in merger_part))
    if names & _FOR_PRIMARY_SHARD:
        return "primaryShard"
    return "anyShard" if names & _FOR_ANY_SHARD or (may_spill and names & _SPILLING) else "mongos"


def obstacle_on_router(stage: Stage, db: str, sharded: Container[str], *, may_spill: bool) -> str | None:
    """Return the reason why mongos itself cannot run a stage, in its words; None if it can.

    Args:
        db: the database of the aggregation.
        sharded: the names of the sharded collections that the stage reads.
        may_spill: whether stages may write temporary files, which mongos does not.
    """
    return _obstacle(decode_document(stage.raw), db, sharded, may_spill=may_spill)


def _obstacle(stage: Mapping[str, Any], db: str, sharded: Container[str], *, may_spill: bool) -> str | None:
    [(name, specification)] = stage.items()
    found = {_obstacle(each, db, sharded, may_spill=may_spill) for each in _of_facets(name, specification)}
    if name in _ON_SHARDS_ONLY or any(each is not None and each.endswith(_ON_SHARD) for each in found):
        return name + _ON_SHARD
    is_join = name in _JOINS and isinstance(specification, Mapping)
    if is_join and f"{db}.{specification.get('from')}" not in sharded:
        return name + _ON_SHARD
    spilling = _spilling(name, specification) if may_spill else None
    return None if spilling is None else f"{spilling} may write to disk when 'allowDiskUse' is enabled"


def _spilling(name: str, specification: object) -> str | None:
    """Return the name of the first stage that may spill to disk, as mongod executes the stage; None if none does."""
    if name in _GROUPS:
        return "$group"
    given = specification if isinstance(specification, Mapping) else {}
    if name == "$fill":
        methods = given.get("output")
        is_windowed = isinstance(methods, Mapping) and any("method" in each for each in methods.values())
        return "$sort" if is_windowed else None
    if name == "$setWindowFields":
        return "$_internalSetWindowFields" if given.keys().isdisjoint(("partitionBy", "sortBy")) else "$sort"
    if name == "$densify":
        return "$sort"
    nested = given.get("pipeline", ()) if name == "$lookup" else _of_facets(name, specification)
    spills = name in _SPILLING or any(_spilling(*item) for stage in nested for item in stage.items())
    return name if spills else None


def _of_facets(name: str, specification: object) -> Iterator[Mapping[str, Any]]:
    """Yield the stages in the pipelines of a ``$facet``."""
    if name == "$facet" and isinstance(specification, Mapping):
        for nested in specification.values():
            yield from nested


def _names(stages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of stages, including stages in the pipelines of a ``$facet``."""
    for stage in stages:
        for name, specification in stage.items():
            yield name
            if name == "$facet" and isinstance(specification, Mapping):
                for nested in specification.values():
                    yield from _names(nested)
