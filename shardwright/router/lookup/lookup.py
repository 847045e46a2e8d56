"""A ``$lookup``: its arguments, the values that it compares, and the documents that may match.

* A mongod has validated the arguments before they are read here (`operations.checked_pipeline`).
* A mongod evaluates the variables in ``let`` for each document.
* The values for an equality are taken from raw documents. These may be too many, never too few, because a mongod
  makes the exact comparison later. `Candidates` are the documents of the other collection that may match a document.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from shardwright.router.lookup.environment import JoinEnvironment
from shardwright.router.lookup.pipeline_input import BATCH_MATCHES_BYTES_MAX, Room, chunks, documents_stage, raw_stage
from shardwright.sharding.key_order import ENCODED_NULL, encode_value
from shardwright.sharding.pipelines.pipeline import may_involve_others
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOUBLE,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    NULL,
    OBJECT,
    OBJECT_ID,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UNDEFINED,
    Span,
    array_documents,
    array_of_documents,
    decode_value,
    element,
    encode_elements,
    find,
    from_elements,
    index,
    spans,
)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The arguments of a ``$lookup``.

    Attributes:
        collection: the other collection; None if the pipeline begins with ``$documents``, even if ``from`` is given.
        local_field: ``localField``; None without an equality.
        foreign_field: ``foreignField``; None without an equality.
        variables: the expressions of ``let``, as type and raw value by name.
        into: ``as``.
    """

    collection: str | None
    local_field: str | None
    foreign_field: str | None
    variables: dict[bytes, tuple[int, bytes]]
    stages: tuple[bytes, ...]
    into: str

    @classmethod
    def parse(cls, specification: bytes) -> "Lookup":
        """Parse the raw specification of the stage, which must be valid.

        Raises:
            CommandError: FailedToParse, ``from`` is a special collection that mongod reads only for servers.
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
        """The local and the foreign path to compare; None without an equality."""
        if self.local_field is None or self.foreign_field is None:
            return None
        return self.local_field, self.foreign_field

    @property
    def names_others(self) -> bool:
        """Whether the pipeline may name further collections."""
        return any(may_involve_others(each) for each in self.stages)

    @property
    def leading_matches(self) -> Iterator[bytes]:
        """The leading ``$match`` stages of the pipeline that do not depend on variables."""
        for raw in self.stages:
            if next(spans(raw))[0] != b"$match" or any(b"$$" + variable in raw for variable in self.variables):
                return
            yield raw

    @property
    def is_correlated(self) -> bool:
        """Whether the pipeline may use a variable of ``let``. False positives are possible."""
        return any(b"$$" + name in each for name in self.variables for each in self.stages)


def begins_with_documents(stages: tuple[bytes, ...]) -> bool:
    """Whether a nested pipeline of raw stages starts with ``$documents``, and so reads no collection."""
    return bool(stages) and next(iter(index(stages[0])), None) == b"$documents"


def _collection(specification: bytes, span: Span) -> str:
    """Return the name of the other collection.

    Raises:
        CommandError: FailedToParse, it is a special collection that mongod reads in this form only for servers.
    """
    if span[0] != STRING:
        raise CommandError(ErrorCode.FailedToParse, "$lookup argument 'from' must be a string")
    return string_at(specification, span)


def _string(specification: bytes, fields: dict[bytes, Span], name: bytes) -> str | None:
    span = fields.get(name)
    return None if span is None else string_at(specification, span)


def string_at(specification: bytes, span: Span) -> str:
    """Return the string argument at a span."""
    return str(decode_value(specification, span))


_REMOVED: Final = "$$REMOVE"
"""Substitutes the value of a variable whose expression is missing."""


class LetVariables:
    """The ``let`` variables of one stage."""

    def __init__(self, environment: JoinEnvironment, expressions: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Prepare the variables.

        Args:
            expressions: type and raw value of each expression by the variable's name.
        """
        self._environment = environment
        self._names = tuple(expressions)
        object_of_all = from_elements(b"".join(element(name, *each) for name, each in expressions.items()))
        self._stage = raw_stage(b"$replaceWith", object_of_all)

    async def of(self, documents: Sequence[bytes]) -> list[bytes]:
        """Evaluate the variables for each document; return a document of values for each, without missing ones.

        Raises:
            TooLargeError: the values are too large.
        """
        if not self._names:
            return [EMPTY_DOCUMENT] * len(documents)
        values: list[bytes] = []
        for chunk in chunks(documents):
            stream = await self._environment.compute([documents_stage(chunk), self._stage])
            values += await self._environment.collect(stream, Room(BATCH_MATCHES_BYTES_MAX))
        return values

    def as_let(self, values: bytes) -> dict[bytes, bytes]:
        """Return the elements of the ``let`` of a command, by name.

        Args:
            values: one of the documents from `of`.
        """
        fields = index(values)
        let = {}
        for name in self._names:
            span = fields.get(name)
            if span is None:
                let[name] = encode_elements({name.decode(): _REMOVED})
            else:
                literal = from_elements(element(b"$literal", span[0], values[span[2] : span[3]]))
                let[name] = element(name, OBJECT, literal)
        return let

    def handed_as(self, field: str) -> dict[str, str]:
        """Return the ``let`` of a stage whose documents have the values in a field."""
        return {name.decode(): f"${field}.{name.decode()}" for name in self._names}


_COLLATED: Final = frozenset({STRING, SYMBOL, OBJECT, ARRAY})
"""Types whose values can be equal under a collation although their bytes differ."""

_PLAIN: Final = frozenset({DOUBLE, INT32, INT64, DECIMAL128, STRING, OBJECT_ID, BOOL, DATE, TIMESTAMP, BINARY})
"""Types whose values are equal if and only if their keys are."""

_ANY_COLLATED: Final = b"collated"
_MISSING: Final = frozenset({NULL, UNDEFINED})


def values_at(document: bytes, path: Sequence[bytes], start: int = 0) -> Iterator[Span | None]:
    """Yield the values at a path, through arrays, and the elements of arrays; None for a missing value.

    Args:
        path: the names, at least one. A number may be a field, or an index into an array.
        start: the offset of the object or array in ``document`` that the path starts at.
    """
    span = find(document, path[0], start)
    if span is None:
        yield None
    elif len(path) == 1:
        yield span
        if span[0] == ARRAY:
            yield from _elements(document, span)
    elif span[0] == OBJECT:
        yield from values_at(document, path[1:], span[2])
    elif span[0] == ARRAY:
        yield from _values_in_array(document, span, path[1:])
    else:
        yield None


def _elements(document: bytes, array: Span) -> Iterator[Span | None]:
    is_empty = True
    for _, span in spans(document, array[2]):
        is_empty = False
        yield span
    if is_empty:
        yield None


def _values_in_array(document: bytes, array: Span, path: Sequence[bytes]) -> Iterator[Span | None]:
    if path[0].isdigit():
        yield from values_at(document, path, array[2])
    is_empty = True
    for _, span in spans(document, array[2]):
        is_empty = False
        if span[0] == OBJECT:
            yield from values_at(document, path, span[2])
        elif span[0] == ARRAY:
            yield from _values_in_array(document, span, path)
        else:
            yield None
    if is_empty:
        yield None


def comparison_key(document: bytes, span: Span | None, *, is_collated: bool) -> bytes:
    """Encode a value so that equal values have the same bytes. Some different values have the same bytes, too.

    Args:
        span: the value, None for a missing one.
        is_collated: whether a collation other than the simple one applies.
    """
    if span is None or span[0] in _MISSING:
        return ENCODED_NULL
    if is_collated and span[0] in _COLLATED:
        return _ANY_COLLATED
    return encode_value(document, span)


def has_plain_value(document: bytes, path: Sequence[bytes]) -> bool:
    """Whether a top-level field has a single value for which equal keys mean equal values."""
    span = find(document, path[0]) if len(path) == 1 else None
    return span is not None and span[0] in _PLAIN


class WantedValues:
    """The distinct values of a field in a batch of documents, to look up in another collection."""

    def __init__(self, path: Sequence[bytes]) -> None:
        """Begin without values."""
        self._path = path
        self._values: dict[bytes, tuple[int, bytes]] = {}

    def add(self, document: bytes) -> set[bytes]:
        """Add the values of one document; return their keys, without a collation."""
        keys = set()
        for span in values_at(document, self._path):
            key = comparison_key(document, span, is_collated=False)
            keys.add(key)
            if span is not None and span[0] == STRING:
                key += b"s"  # a symbol with the same text must be looked up separately
            if key not in self._values:
                is_missing = span is None or span[0] in _MISSING
                self._values[key] = (NULL, b"") if is_missing else _value(document, span)
        return keys

    def filter(self, field: bytes) -> bytes:
        """Return a raw filter for the documents that have one of the values in a field."""
        plain = [value for value in self._values.values() if value[0] != REGEX]
        alternatives = [_condition(field, b"$in", ARRAY, _array(plain))]
        # In $in, a regular expression would match strings.
        alternatives += [_condition(field, b"$eq", *value) for value in self._values.values() if value[0] == REGEX]
        if len(alternatives) == 1:
            return alternatives[0]
        return from_elements(element(b"$or", ARRAY, array_of_documents(alternatives)))


def _value(document: bytes, span: Span | None) -> tuple[int, bytes]:
    assert span is not None
    return span[0], document[span[2] : span[3]]


def _condition(field: bytes, operator: bytes, kind: int, value: bytes) -> bytes:
    return from_elements(element(field, OBJECT, from_elements(element(operator, kind, value))))


def _array(values: Sequence[tuple[int, bytes]]) -> bytes:
    parts = [element(b"%d" % position, kind, value) for position, (kind, value) in enumerate(values)]
    return from_elements(b"".join(parts))


class Candidates:
    """Documents of the other collection, indexed by the values of the compared field.

    The index saves a mongod from comparing every document with every other. It may return too many documents, but the
    mongod makes the exact comparison.
    """

    def __init__(self, documents: Sequence[bytes], path: Sequence[bytes], *, is_collated: bool) -> None:
        """Index the documents.

        Args:
            path: the names of the compared field's path.
            is_collated: whether a collation other than the simple one applies.
        """
        self._documents = documents
        self._is_collated = is_collated
        self._by_key: dict[bytes, list[int]] = {}
        for number, document in enumerate(documents):
            for key in self._keys(document, path):
                self._by_key.setdefault(key, []).append(number)

    def of(self, document: bytes, path: Sequence[bytes]) -> list[bytes]:
        """Return the documents that may match a document of the batch, in their original order.

        Args:
            path: the names of its compared field's path.
        """
        return self.of_keys(self._keys(document, path))

    def of_keys(self, keys: Set[bytes]) -> list[bytes]:
        """Do the same as `of`, given the keys of the document's values, which depend on the collation."""
        if len(keys) == 1:
            [key] = keys
            return [self._documents[number] for number in self._by_key.get(key, ())]
        numbers: set[int] = set()
        for key in keys:
            numbers.update(self._by_key.get(key, ()))
        return [self._documents[number] for number in sorted(numbers)]

    def _keys(self, document: bytes, path: Sequence[bytes]) -> set[bytes]:
        return {comparison_key(document, span, is_collated=self._is_collated) for span in values_at(document, path)}
