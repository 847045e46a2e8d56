"""An aggregation pipeline, parsed as far as routing needs it: its stages, target condition and other collections.

**Time-series collections.** A read of measurements is translated into a read of buckets. The first stage unpacks the
buckets into measurements. Stages that belong before it move there as soon as the view is resolved, as in MongoDB's
routers. A mongod moves them too, but only in a whole pipeline that begins with that stage. A shard's part begins with
the ownership filter, and its results must have the sort keys that unpacking removes.

**Involved namespaces.** A mongod that runs a pipeline opens the other collections by their names. So the command
carries the versions by which the router routed them, in a field of Shardwright's own::

    involvedNamespaces: [{ns: "db.coll", $configTime: …, shardVersion: {…}, databaseVersion: {…}}, …]

Only shards that list the field among the ``extensions`` of their hello understand it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardwright.sharding.targeting.bucket_filters import bucket_filter
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    InvalidBSONError,
    Span,
    append,
    array_of_documents,
    decode_value,
    element,
    encode_document,
    find,
    from_elements,
    index,
    is_string,
    spans,
    string_value,
    with_value,
)
from shardwright.wire.request import Request

INVOLVED_NAMESPACES: Final = b"involvedNamespaces"

JOINED_NAMESPACE: Final = "involvedNamespace"
"""Field of an error with the name of a collection that the shard has only in part, and that the router can join."""

WRITING_STAGES: Final = frozenset({b"$out", b"$merge"})

_NAMING: Final = re.compile(rb"\$(?:lookup|graphLookup|unionWith|out|merge)\0")
_SOURCE_FIELDS: Final = {
    b"$lookup": b"from",
    b"$graphLookup": b"from",
    b"$unionWith": b"coll",
    b"$merge": b"into",
}
_NAMED_BY_STRING: Final = WRITING_STAGES | {b"$unionWith"}
_WITH_PIPELINE: Final = frozenset({b"$lookup", b"$unionWith"})
_Where = tuple[str, str]

NOT_ONE_FIELD: Final = 40323

UNPACK_BUCKET: Final = "$_internalUnpackBucket"
"""First stage of reads, which unpacks the buckets of a time-series collection into measurements."""

CONVERT_INDEX_STATS: Final = "$_internalConvertBucketIndexStats"
"""Stage after ``$indexStats`` that shows the indexes of buckets as indexes of measurements."""

_CHANGED_FIELDS: Final = ("exclude", "computedMetaProjFields")

DESCRIBE_SHARDS: Final = frozenset({"$collStats", "$currentOp", "$indexStats", "$listCatalog", "$planCacheStats"})
"""Sources with which each shard describes itself: all shards of the collection receive them."""


def asks_for_another_way(error: CommandError) -> bool:
    """Whether a shard refuses a read that it cannot run alone: the router resolves the view, or joins."""
    return error.code == ErrorCode.CommandOnShardedViewNotSupportedOnMongod or JOINED_NAMESPACE in error.extra


def may_involve_others(body: bytes) -> bool:
    """Whether a command may name other collections, judged by its bytes. A True may be wrong, a False never is."""
    return _NAMING.search(body) is not None


def involved_namespaces(pipeline: bytes, db: str, start: int = 0) -> dict[str, bool]:
    """Map the other collections that a pipeline names, also in nested pipelines, to whether it writes them.

    Stages that mongod would refuse are skipped here; mongod reports the error.

    Args:
        pipeline: the raw array, or a document that contains it.
        start: where in ``pipeline`` the array begins.

    Raises:
        CommandError: InvalidBSON; Overflow, it is nested too deep.
    """
    found: dict[str, bool] = {}
    try:
        for stage, namespace in _named_in(pipeline, start, db, 0):
            found[namespace] = found.get(namespace, False) or stage in WRITING_STAGES
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error
    return found


def writes(pipeline: bytes, start: int = 0) -> bool:
    """Whether a pipeline, a raw array or one inside a document, has a stage that writes; raises InvalidBSON."""
    try:
        for _, (kind, _, at, _) in spans(pipeline, start):
            if kind == OBJECT and any(name in WRITING_STAGES for name, _ in spans(pipeline, at)):
                return True
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error
    return False


def involved_namespaces_element(versions: Mapping[str, bytes]) -> bytes:
    """Build the element for a command; empty if no other collection is involved.

    ``versions`` are the raw version elements by namespace, with the config time at which they were read.
    """
    if not versions:
        return b""
    entries = [append(encode_document({"ns": namespace}), elements) for namespace, elements in versions.items()]
    return element(INVOLVED_NAMESPACES, ARRAY, array_of_documents(entries))


def received_versions(body: bytes, span: Span) -> dict[str, Mapping[bytes, Span]]:
    """Parse the field of a command; return its version elements by namespace and name.

    Raises TypeMismatch or FailedToParse if it is malformed.
    """
    if span[0] != ARRAY:
        raise CommandError(ErrorCode.TypeMismatch, "involvedNamespaces must be an array")
    found: dict[str, Mapping[bytes, Span]] = {}
    for _, (kind, _, start, _) in spans(body, span[2]):
        fields = index(body, start) if kind == OBJECT else {}
        namespace = fields.get(b"ns")
        if namespace is None or namespace[0] != STRING:
            raise CommandError(ErrorCode.FailedToParse, "involvedNamespaces must hold documents with a string ns")
        found[_text(body, namespace)] = fields
    return found


def _named_in(document: bytes, start: int, db: str, depth: int) -> Iterator[tuple[bytes, str]]:
    if depth > NESTING_LEVELS_MAX:
        raise CommandError(ErrorCode.Overflow, "BSONObj exceeds maximum nested object depth")
    for _, (kind, _, stage_start, _) in spans(document, start):
        if kind == OBJECT:
            for name, specification in spans(document, stage_start):
                yield from _named_by(name, document, specification, db, depth)


def _named_by(stage: bytes, document: bytes, specification: Span, db: str, depth: int) -> Iterator[tuple[bytes, str]]:
    kind, _, start, _ = specification
    if kind == STRING and stage in _NAMED_BY_STRING:
        yield stage, f"{db}.{_text(document, specification)}"
    if kind != OBJECT:
        return
    if stage == b"$facet":
        for _, (nested_kind, _, nested_start, _) in spans(document, start):
            if nested_kind == ARRAY:
                yield from _named_in(document, nested_start, db, depth + 1)
        return
    where = _where(stage, document, specification, db)
    if where is not None:
        yield stage, ".".join(where)
    if stage in _WITH_PIPELINE:
        nested_db = db if where is None else where[0]
        for name, (nested_kind, _, nested_start, _) in spans(document, start):
            if name == b"pipeline" and nested_kind == ARRAY:
                yield from _named_in(document, nested_start, nested_db, depth + 1)


def _where(stage: bytes, document: bytes, specification: Span, db: str) -> _Where | None:
    """Return the database and collection that a stage's specification, a document, names; None if it names none."""
    if stage == b"$out":
        return _db_and_collection(document, index(document, specification[2]), db)
    name = _SOURCE_FIELDS.get(stage)
    source = None if name is None else index(document, specification[2]).get(name)
    if source is None:
        return None
    if source[0] == STRING:
        return db, _text(document, source)
    return _db_and_collection(document, index(document, source[2]), db) if source[0] == OBJECT else None


def _db_and_collection(document: bytes, fields: Mapping[bytes, Span], db: str) -> _Where | None:
    """Read ``{db, coll}``; a missing database is the same as an empty one."""
    named, collection = fields.get(b"db"), fields.get(b"coll")
    if collection is None or collection[0] != STRING:
        return None
    given = _text(document, named) if named is not None and named[0] == STRING else ""
    return given or db, _text(document, collection)


def _text(document: bytes, span: Span) -> str:
    return document[span[2] + 4 : span[3] - 1].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage ``{<name>: <specification>}``; ``span`` is the position of the specification in ``raw``."""

    name: str
    raw: bytes
    span: Span

    @classmethod
    def parse(cls, raw: bytes) -> "Stage":
        """Parse a stage; raise 40323 if it has not exactly one field."""
        fields = list(spans(raw))
        if len(fields) != 1:
            raise CommandError(NOT_ONE_FIELD, "A pipeline stage specification object must contain exactly one field.")
        return cls(fields[0][0].decode(errors="replace"), raw, fields[0][1])

    @property
    def specification(self) -> Any:  # noqa: ANN401 - each stage has its own
        """Decoded specification of the stage."""
        return decode_value(self.raw, self.span)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of an ``aggregate``."""

    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, request: Request) -> "Pipeline":
        """Parse the pipeline of a request.

        Raises 40414 without a pipeline, TypeMismatch, or 40323 for a stage without exactly one field.
        """
        span = request.fields.get(b"pipeline")
        if span is None:
            raise missing_field("aggregate.pipeline")
        if span[0] != ARRAY:
            raise CommandError(ErrorCode.TypeMismatch, "'pipeline' option must be specified as an array")
        return cls(tuple(_stages(request.body, span)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.stages)

    @property
    def first(self) -> str:
        """Name of the first stage, empty if there is none."""
        return self.stages[0].name if self.stages else ""

    @property
    def filter(self) -> bytes:
        """Raw filter of a leading ``$match``, empty if there is none; it determines the pipeline's targets."""
        if self.first != "$match":
            return EMPTY_DOCUMENT
        kind, _, start, end = self.stages[0].span
        return self.stages[0].raw[start:end] if kind == OBJECT else EMPTY_DOCUMENT

    def involved_namespaces(self, db: str) -> dict[str, bool]:
        """Map the other collections that stages name, in nested pipelines too, to whether they are written.

        ``db`` is the default database. Raises InvalidBSON, or Overflow for pipelines nested too deep.
        """
        if not any(may_involve_others(stage.raw) for stage in self.stages):
            return {}
        return involved_namespaces(array_of_documents([stage.raw for stage in self.stages]), db)


def _stages(body: bytes, pipeline: Span) -> Iterator[Stage]:
    for _, (kind, _, start, end) in spans(body, pipeline[2]):
        if kind != OBJECT:
            raise CommandError(ErrorCode.TypeMismatch, "Each element of the 'pipeline' array must be an object")
        yield Stage.parse(body[start:end])


def stages_of_buckets(stages: Sequence[bytes]) -> list[bytes]:
    """Translate raw stages of a view and of a read of it into reads of buckets; the first stage unpacks buckets."""
    unpacking, *others = (Stage.parse(stage) for stage in stages)
    fields = unpacked_fields(unpacking)
    if fields is None or not others:
        return list(stages)
    if others[0].name == "$indexStats":
        # This reports the buckets' indexes, and does not read their measurements.
        meta = {} if fields.meta_field is None else {"metaField": fields.meta_field}
        conversion = encode_document({CONVERT_INDEX_STATS: {"timeField": fields.time_field, **meta}})
        return [stages[1], conversion, *stages[2:]]
    near = _near_buckets(others[0], fields) if others[0].name == "$geoNear" else None
    return list(stages) if near is None else [near, stages[0], *stages[2:]]


def with_hint_for_buckets(body: bytes, fields: TimeSeriesFields) -> bytes:
    """Translate the hint of an ``aggregate`` for its buckets.

    A hint that is not for an index of measurements stays as it is, for mongod to refuse.
    """
    hint = find(body, b"hint")
    if hint is None or hint[0] != OBJECT:
        return body
    try:
        return with_value(body, hint, fields.buckets_hint(body[hint[2] : hint[3]]))
    except CommandError:
        return body


def unpacked_fields(stage: Stage) -> TimeSeriesFields | None:
    """Return the bucketing parameters of an unpacking stage.

    None if it is another stage, or a client's own that mongod refuses or that leaves fields out.
    """
    fields = stage.specification if stage.name == UNPACK_BUCKET else None
    if not isinstance(fields, dict) or "include" in fields or any(fields.get(name) for name in _CHANGED_FIELDS):
        return None
    time, meta = fields.get("timeField"), fields.get("metaField")
    return TimeSeriesFields(time, meta) if is_string(time) and (meta is None or is_string(meta)) else None


def _near_buckets(stage: Stage, fields: TimeSeriesFields) -> bytes | None:
    """Translate a ``$geoNear`` of measurements into one of buckets.

    None if it is not about positions in the metadata, or mongod refuses it for time-series collections.
    """
    kind, _, start, end = stage.span
    near = stage.raw[start:end]
    key = find(near, b"key") if kind == OBJECT else None
    if key is None or key[0] != STRING:
        return None
    path = fields.renamed(near[key[2] + 4 : key[3] - 1].decode(errors="replace"))
    query = find(near, b"query")
    if path is None or (query is not None and near[query[2] : query[3]] != EMPTY_DOCUMENT):
        return None
    return with_value(stage.raw, stage.span, with_value(near, key, string_value(path)))


def leading_filter(pipeline: Pipeline, fields: TimeSeriesFields | None = None) -> bytes:
    """Return the raw filter that all documents of the collection have to pass, empty if there is none.

    It consists of all leading ``$match`` stages, between which only sorts may stand, and the ``query`` of a
    ``$geoNear``. With the ``fields`` of a collection of buckets, a filter of measurements becomes a filter of buckets.
    """
    filters = list(_filters(pipeline.stages, fields))
    if len(filters) < 2:
        return filters[0] if filters else EMPTY_DOCUMENT
    return from_elements(element(b"$and", ARRAY, array_of_documents(filters)))


def _filters(stages: Sequence[Stage], fields: TimeSeriesFields | None) -> Iterator[bytes]:
    are_measurements = False
    for stage in stages:
        kind, _, start, end = stage.span
        if stage.name == "$match" and kind == OBJECT:
            given = stage.raw[start:end]
            yield given if fields is None or not are_measurements else bucket_filter(given, fields)
        elif stage.name == "$geoNear" and kind == OBJECT and not are_measurements:
            query = find(stage.raw, b"query", start)
            if query is not None and query[0] == OBJECT:
                yield stage.raw[query[2] : query[3]]
            return  # its distance may be stored in a field of the shard key
        elif stage.name == UNPACK_BUCKET and fields is not None:
            are_measurements = True
        elif stage.name != "$sort":
            return
