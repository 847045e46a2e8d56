"""The arguments of ``$lookup``, which a mongod has checked (`operations.checked_pipeline`)."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.sharding.involved_namespaces import may_involve_others
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import STRING, Span, array_documents, decode_value, index, spans


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
        """Read the raw specification of the stage, which is right.

        Raises:
            CommandError: FailedToParse, it reads a collection of a server.
        """
        fields = index(specification)
        pipeline, let = fields.get(b"pipeline"), fields.get(b"let")
        stages = () if pipeline is None else tuple(array_documents(specification, pipeline))
        variables = {} if let is None else index(specification, let[2])
        return cls(
            None if begins_with_documents(stages) else _collection(specification, fields[b"from"]),
            _string(specification, fields, b"localField"),
            _string(specification, fields, b"foreignField"),
            {name: (kind, specification[start:end]) for name, (kind, _, start, end) in variables.items()},
            stages,
            string_at(specification, fields[b"as"]),
        )

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


def _collection(specification: bytes, span: Span) -> str:
    """The name of the other collection.

    Raises:
        CommandError: FailedToParse, it is one of the collections of a server, which mongod also reads for servers.
    """
    if span[0] != STRING:
        raise CommandError(ErrorCode.FailedToParse, "$lookup argument 'from' must be a string")
    return string_at(specification, span)


def _string(specification: bytes, fields: dict[bytes, Span], name: bytes) -> str | None:
    span = fields.get(name)
    return None if span is None else string_at(specification, span)


def string_at(specification: bytes, span: Span) -> str:
    """The string that is an argument."""
    return str(decode_value(specification, span))
