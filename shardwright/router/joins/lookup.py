"""The arguments of ``$lookup``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardwright.sharding.involved_namespaces import may_involve_others
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, Span, array_documents, decode_value, index, spans

_FIELDS: Final = frozenset({b"from", b"localField", b"foreignField", b"let", b"pipeline", b"as"})
_WRITING: Final = (b"$out", b"$merge")
NOT_IN_LOOKUP: Final = 51047
"""MongoDB's number for a writing stage in the pipeline of a ``$lookup``."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a ``$lookup`` is to do.

    Attributes:
        collection: the other collection; None if the pipeline begins with ``$documents``, whatever is named beside it.
        local_field: path of the compared field of the documents, None without an equality.
        foreign_field: likewise of the other collection's.
        variables: the expressions of ``let``, as type and raw value by name.
        stages: the raw stages of the pipeline.
        into: path of the field for the result.
    """

    collection: str | None
    local_field: str | None
    foreign_field: str | None
    variables: dict[bytes, tuple[int, bytes]]
    stages: tuple[bytes, ...]
    into: str

    @classmethod
    def parse(cls, specification: bytes) -> "Lookup":
        """Read the raw specification of the stage.

        Raises:
            CommandError: FailedToParse, arguments are missing or of wrong types; 51047, its pipeline writes.
        """
        fields = index(specification)
        for name in fields:
            if name not in _FIELDS:
                raise _failed(f"unknown argument to $lookup: {name.decode(errors='replace')}")
        into = _string(specification, fields, b"as")
        local, foreign = _string(specification, fields, b"localField"), _string(specification, fields, b"foreignField")
        pipeline, let = fields.get(b"pipeline"), fields.get(b"let")
        if pipeline is None and (local is None or foreign is None):
            raise _failed("$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified")
        if (local is None) != (foreign is None):
            raise _failed("$lookup requires both or neither of 'localField' and 'foreignField' to be specified")
        if let is not None and pipeline is None:
            raise _failed("$lookup with a 'let' argument must also specify 'pipeline'")
        if let is not None and let[0] != OBJECT:
            raise _failed("$lookup argument 'let' must be an object")
        if into is None:
            raise _failed("must specify 'as' field for a $lookup")
        stages = () if pipeline is None else _stages(specification, pipeline)
        check_writes_nothing(stages, "a $lookup", NOT_IN_LOOKUP)
        variables = (
            {}
            if let is None
            else {
                name: (span[0], specification[span[2] : span[3]]) for name, span in index(specification, let[2]).items()
            }
        )
        collection = None if begins_with_documents(stages) else _string(specification, fields, b"from")
        return cls(collection, local, foreign, variables, stages, into)

    @property
    def equality(self) -> tuple[str, str] | None:
        """The paths that are compared, of the documents and of the other collection's; None without an equality."""
        if self.local_field is None or self.foreign_field is None:
            return None
        return self.local_field, self.foreign_field

    @property
    def names_others(self) -> bool:
        """Whether the pipeline may name further collections."""
        return any(may_involve_others(each) for each in self.stages)

    @property
    def leading_matches(self) -> Iterator[bytes]:
        """The first stages of the pipeline if they only leave out documents, whatever these are joined with."""
        for raw in self.stages:
            if next(spans(raw))[0] != b"$match" or any(b"$$" + variable in raw for variable in self.variables):
                return
            yield raw

    @property
    def is_correlated(self) -> bool:
        """Whether the pipeline may use a variable of ``let``; wrong only in saying yes."""
        return any(b"$$" + name in each for name in self.variables for each in self.stages)


def begins_with_documents(stages: tuple[bytes, ...]) -> bool:
    """Whether a nested pipeline, whose stages are raw, reads no collection."""
    return bool(stages) and next(iter(index(stages[0])), None) == b"$documents"


def check_writes_nothing(stages: tuple[bytes, ...], where: str, code: int) -> None:
    """Refuse a nested pipeline that writes.

    Args:
        stages: raw.
        where: what the pipeline belongs to, for the error.
        code: of the error.

    Raises:
        CommandError: it has such a stage.
    """
    for raw in stages:
        for name in index(raw):
            if name in _WRITING:
                raise CommandError(code, f"{name.decode()} is not allowed within {where}'s sub-pipeline")


def _string(specification: bytes, fields: dict[bytes, Span], name: bytes) -> str | None:
    span = fields.get(name)
    if span is None:
        return None
    value = decode_value(specification, span)
    if span[0] != STRING:
        raise _failed(f"$lookup argument '{name.decode()}' must be a string, found {name.decode()}: {value!r}")
    return str(value)


def _stages(specification: bytes, pipeline: Span) -> tuple[bytes, ...]:
    if pipeline[0] != ARRAY:
        raise CommandError(ErrorCode.TypeMismatch, "'pipeline' option must be specified as an array")
    return tuple(array_documents(specification, pipeline))


def _failed(message: str) -> CommandError:
    return CommandError(ErrorCode.FailedToParse, message)
