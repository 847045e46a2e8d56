"""``$merge``, and the statements that write its documents if the target is sharded.

The ``$merge`` of a mongod writes to its own collection. A pipeline into a sharded collection therefore runs without the
stage, and the router writes the results. A mongod has validated the specification before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    NULL,
    OBJECT,
    UNDEFINED,
    Span,
    append,
    element,
    encode_document,
    encode_elements,
    find,
    from_elements,
    index,
    is_string,
)

MISSING_ON_FIELD: Final = 51132
ARRAY_ON_FIELD: Final = 51185
"""MongoDB's error codes for documents that cannot be merged."""

_DOCUMENT: Final = "d"
_VARIABLES: Final = "v"
_OPERATORS: Final = {"merge": b"$set", "keepExisting": b"$setOnInsert"}


@dataclass(frozen=True, slots=True)
class MergeStage:
    """The arguments of a ``$merge``.

    Attributes:
        on: the fields that identify a document, dotted.
        let: the raw variables of the pipeline, None if there are none.
        when_matched: ``merge``, ``replace``, ``keepExisting``, ``fail`` or ``pipeline``.
        when_not_matched: ``insert``, ``fail`` or ``discard``.
        pipeline: the raw array that updates matched documents, if there is one.
    """

    target: Namespace
    on: tuple[str, ...]
    let: bytes | None = None
    when_matched: str = "merge"
    when_not_matched: str = "insert"
    pipeline: bytes | None = None

    @classmethod
    def of(cls, stage: Stage, db: str, shard_key: Sequence[str]) -> "MergeStage":
        """Parse the stage, which must be valid."""
        given: Any = stage.specification
        specification: dict[str, Any] = given if isinstance(given, dict) else {"into": given}
        into = specification["into"]
        target = Namespace(into.get("db") or db, into["coll"]) if isinstance(into, dict) else Namespace(db, into)
        on = specification.get("on", tuple(dict.fromkeys(("_id", *shard_key))))
        matched = specification.get("whenMatched", "merge")
        fields = index(stage.raw, stage.span[2]) if stage.span[0] == OBJECT else {}
        is_pipeline = isinstance(matched, list)
        return cls(
            target,
            (on,) if is_string(on) else tuple(on),
            _raw(stage.raw, fields.get(b"let")),
            "pipeline" if is_pipeline else matched,
            specification.get("whenNotMatched", "insert"),
            _raw(stage.raw, fields[b"whenMatched"]) if is_pipeline else None,
        )

    @property
    def last_stage(self) -> bytes | None:
        """The raw stage that replaces this one, None if the documents are written unchanged.

        It evaluates the variables, which may depend on each document.
        """
        if self.pipeline is None or self.let is None:
            return None
        variables = element(_VARIABLES.encode(), OBJECT, self.let)
        root = from_elements(encode_elements({_DOCUMENT: "$$ROOT"}) + variables)
        return from_elements(element(b"$replaceWith", OBJECT, root))

    def insert(self, result: bytes) -> bytes:
        """Return the document to insert for a result, if ``whenMatched`` is ``fail``.

        Raises:
            CommandError: 51132 or 51185, it lacks an identifying field.
        """
        document = _with_id(result) if "_id" in self.on else result
        self._query(document)
        return document

    def update(self, result: bytes) -> bytes:
        """Build the raw statement of an ``update`` for a result."""
        is_wrapped = self.last_stage is not None
        document = _raw(result, find(result, _DOCUMENT.encode())) if is_wrapped else result
        assert document is not None
        if "_id" in self.on:
            document = _with_id(document)
        inserts = self.when_not_matched == "insert"
        statement = element(b"q", OBJECT, self._query(document)) + self._modification(document)
        if self.pipeline is not None:
            variables = _raw(result, find(result, _VARIABLES.encode())) if is_wrapped else None
            new = element(b"new", OBJECT, document)
            rest = b"" if variables is None else b"".join(_elements_but(variables, b"new"))
            statement += element(b"c", OBJECT, from_elements(new + rest))
            if inserts:
                statement += encode_elements({"upsertSupplied": True})
        return from_elements(statement + encode_elements({"multi": False, "upsert": inserts}))

    def _modification(self, document: bytes) -> bytes:
        if self.pipeline is not None:
            return element(b"u", ARRAY, self.pipeline)
        if self.when_matched == "replace":
            return element(b"u", OBJECT, document)
        return element(b"u", OBJECT, from_elements(element(_OPERATORS[self.when_matched], OBJECT, document)))

    def _query(self, document: bytes) -> bytes:
        query = b"".join(
            element(path.encode(), OBJECT, from_elements(_value_of(document, path, b"$eq"))) for path in self.on
        )
        return from_elements(query)


def _value_of(document: bytes, path: str, name: bytes) -> bytes:
    """Return an element with the value at a path."""
    start = 0
    span: Span | None = None
    for field in path.split("."):
        if span is not None and span[0] not in (OBJECT, ARRAY):
            span = None
            break
        span = find(document, field.encode(), start)
        if span is None:
            break
        start = span[2]
        if span[0] == ARRAY:
            raise CommandError(ARRAY_ON_FIELD, f"$merge write error: 'on' field '{path}' is an array")
    if span is None or span[0] in (NULL, UNDEFINED):
        raise CommandError(
            MISSING_ON_FIELD,
            f"$merge write error: 'on' field '{path}' cannot be missing, null, undefined or an array",
        )
    return element(name, span[0], document[span[2] : span[3]])


def _with_id(document: bytes) -> bytes:
    if find(document, b"_id") is not None:
        return document
    return append(encode_document({"_id": ObjectId()}), document[4:-1])


def _elements_but(document: bytes, name: bytes) -> list[bytes]:
    return [document[start:end] for each, (_, start, _, end) in index(document).items() if each != name]


def _raw(document: bytes, span: Span | None) -> bytes | None:
    return None if span is None else document[span[2] : span[3]]
