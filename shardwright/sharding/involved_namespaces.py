"""The other collections that an aggregation names, and the versions by which a router routed them.

A mongod that runs a pipeline opens these collections itself, by name. So the command carries their versions too, in a
field of Shardwright's own::

    involvedNamespaces: [{ns: "db.coll", $configTime: …, shardVersion: {…}, databaseVersion: {…}}, …]

Only shards that list the field among the ``extensions`` of their hello understand it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    InvalidBSONError,
    Span,
    append,
    array_of_documents,
    element,
    encode_document,
    index,
    spans,
)

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
