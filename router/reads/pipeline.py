"""An aggregation pipeline, read as far as routing has to know it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from router.reads.arguments import wrong_type
from sharding.namespace import Namespace
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.rawbson import ARRAY, EMPTY_DOCUMENT, OBJECT, Span, decode_value, spans
from wire.request import Request

MISSING_PIPELINE: Final = 40414
NOT_ONE_FIELD: Final = 40323


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        name: ``$match`` and so on.
        raw: the document ``{<name>: <specification>}``.
        span: where in ``raw`` the specification is.
    """

    name: str
    raw: bytes
    span: Span

    @property
    def specification(self) -> Any:  # noqa: ANN401 - each stage has its own
        """What the stage is to do, decoded."""
        return decode_value(self.raw, self.span)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of an ``aggregate``."""

    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, request: Request) -> "Pipeline":
        """Read the pipeline of a request.

        Raises:
            CommandError: 40414 when there is none, TypeMismatch, 40323 for a stage that has not exactly one field.
        """
        span = request.fields.get(b"pipeline")
        if span is None:
            raise CommandError(MISSING_PIPELINE, "BSON field 'aggregate.pipeline' is missing but a required field")
        if span[0] != ARRAY:
            raise CommandError(ErrorCode.TypeMismatch, "'pipeline' option must be specified as an array")
        return cls(tuple(_stages(request.body, span)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.stages)

    @property
    def first(self) -> str:
        """The name of the first stage, empty if there is none."""
        return self.stages[0].name if self.stages else ""

    @property
    def filter(self) -> bytes:
        """The raw filter of a leading ``$match``, empty if there is none: what decides where the pipeline goes."""
        if self.first != "$match":
            return EMPTY_DOCUMENT
        kind, _, start, end = self.stages[0].span
        return self.stages[0].raw[start:end] if kind == OBJECT else EMPTY_DOCUMENT

    def namespaces_read_or_written(self, db: str) -> Iterator[Namespace]:
        """The other collections that stages name, those of nested pipelines too.

        Args:
            db: the database of the aggregation, where collections without a database are.
        """
        for stage in self.stages:
            if stage.name in _NAMING_STAGES:
                yield from _named(stage.name, stage.specification, db)


_NAMING_STAGES: Final = frozenset({"$lookup", "$graphLookup", "$unionWith", "$out", "$merge", "$facet"})


def _stages(body: bytes, pipeline: Span) -> Iterator[Stage]:
    for name, (kind, _, start, end) in spans(body, pipeline[2]):
        if kind != OBJECT:
            raise wrong_type(f"aggregate.pipeline.{name.decode()}", kind, "object")
        raw = body[start:end]
        fields = list(spans(raw))
        if len(fields) != 1:
            raise CommandError(NOT_ONE_FIELD, "A pipeline stage specification object must contain exactly one field.")
        yield Stage(fields[0][0].decode(errors="replace"), raw, fields[0][1])


def _named(stage: str, specification: Any, db: str) -> Iterator[Namespace]:  # noqa: ANN401 - each stage has its own
    if isinstance(specification, str):
        yield Namespace(db, specification)  # {$unionWith: "coll"}, {$out: "coll"}, {$merge: "coll"}
        return
    if not isinstance(specification, dict):
        return
    if stage == "$facet":
        for nested in specification.values():
            yield from _named_in(nested, db)
        return
    target = specification.get("from", specification.get("into", specification))
    if isinstance(target, str):
        yield Namespace(db, target)
    elif isinstance(target, dict) and isinstance(target.get("coll"), str):
        yield Namespace(str(target.get("db", db)), target["coll"])
    yield from _named_in(specification.get("pipeline"), db)


def _named_in(pipeline: Any, db: str) -> Iterator[Namespace]:  # noqa: ANN401 - whatever stood there
    if isinstance(pipeline, list):
        for stage in pipeline:
            for name, specification in stage.items() if isinstance(stage, dict) else ():
                if name in _NAMING_STAGES:
                    yield from _named(name, specification, db)
