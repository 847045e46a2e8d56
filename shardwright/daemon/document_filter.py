"""Filters in MongoDB's query language on documents of a daemon, such as events of the audit log. Pure.

Only the operators that such filters need are supported. A filter with another one is refused when it is parsed, so that
a filter is never weaker than written.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from bson.regex import Regex

from shardwright.wire.rawbson import is_string

Predicate: TypeAlias = Callable[[Any], bool]
"""Whether a value, or a whole document, matches."""


def parse_filter(query: Mapping[str, Any]) -> Predicate:
    """Parse a filter; ValueError, with a message for the operator, if it is malformed or unsupported."""
    return _all_of([_parse_term(name, condition) for name, condition in query.items()])


def _parse_term(name: str, condition: object) -> Predicate:
    if name in _COMBINED:
        if not isinstance(condition, Sequence) or is_string(condition) or not condition:
            raise ValueError(f"{name} needs an array of filters")
        return _COMBINED[name]([parse_filter(_document(each, name)) for each in condition])
    if name.startswith("$"):
        raise ValueError(f"{name} is not supported in this filter")
    path, is_met = name.split("."), _parse_condition(condition)
    return lambda document: is_met(list(_values(document, path)))


def _parse_condition(condition: object) -> Predicate:
    """Parse a condition on all values at a path; arrays on the path produce several."""
    if not isinstance(condition, Mapping) or not any(name.startswith("$") for name in condition):
        return _equal(condition)
    options = condition.get("$options", "")
    operators = {name: value for name, value in condition.items() if name != "$options"}
    return _all_of([_parse_operator(name, value, str(options)) for name, value in operators.items()])


def _parse_operator(name: str, value: Any, options: str) -> Predicate:  # noqa: ANN401 - a BSON value can be anything
    if name == "$eq":
        return _equal(value)
    if name in _ON_ANY_VALUE:
        return _any_value(_ON_ANY_VALUE[name](value))
    if name == "$ne":
        return _none_of([_equal(value)])
    if name in ("$in", "$nin"):
        if not isinstance(value, list):
            raise ValueError(f"{name} needs an array")
        is_in = _any_of([_equal(each) for each in value])
        return is_in if name == "$in" else _none_of([is_in])
    if name == "$exists":
        return lambda values: bool(values) is bool(value)
    if name == "$regex":
        return _any_value(_matches(value if isinstance(value, Regex) else Regex(str(value), options)))
    if name == "$not":
        return _none_of([_parse_condition(value)])
    raise ValueError(f"{name} is not supported in this filter")


def _values(value: Any, path: Sequence[str]) -> Iterator[Any]:  # noqa: ANN401 - a BSON value can be anything
    """Yield the values at a path; an array is traversed, and counts as its elements and as itself."""
    if not path:
        yield value
        if isinstance(value, list):
            yield from value
    elif isinstance(value, Mapping):
        if path[0] in value:
            yield from _values(value[path[0]], path[1:])
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, Mapping):
                yield from _values(each, path)


def _equal(wanted: object) -> Predicate:
    """Return a test for all values at a path: whether any is equal. Null also equals a missing value."""
    is_any_equal = _any_value(_equals(wanted))
    return is_any_equal if wanted is not None else lambda values: not values or is_any_equal(values)


def _equals(wanted: object) -> Predicate:
    if isinstance(wanted, Regex):
        return _matches(wanted)
    return lambda value: (
        (type(value) is bool is type(wanted) and value is wanted)
        or (not isinstance(value, bool) and not isinstance(wanted, bool) and value == wanted)
    )


def _compared(holds: Callable[[Any, Any], bool]) -> Callable[[object], Predicate]:
    """Return an operator that only values of the same kind can satisfy."""

    def of(wanted: object) -> Predicate:
        kind = next((kind for kind in _ORDERED if isinstance(wanted, kind) and not isinstance(wanted, bool)), None)
        if kind is None:
            raise ValueError(f"{wanted!r} cannot be compared in this filter")
        return lambda value: isinstance(value, kind) and not isinstance(value, bool) and holds(value, wanted)

    return of


def _matches(pattern: "Regex[Any]") -> Predicate:
    try:
        compiled = pattern.try_compile()
    except re.error as error:
        raise ValueError(f"{pattern.pattern!r} is not a regular expression: {error}") from error
    return lambda value: is_string(value) and compiled.search(value) is not None


def _any_value(is_meant: Predicate) -> Predicate:
    return lambda values: any(map(is_meant, values))


def _all_of(predicates: Sequence[Predicate]) -> Predicate:
    return lambda value: all(each(value) for each in predicates)


def _any_of(predicates: Sequence[Predicate]) -> Predicate:
    return lambda value: any(each(value) for each in predicates)


def _none_of(predicates: Sequence[Predicate]) -> Predicate:
    return lambda value: not any(each(value) for each in predicates)


def _document(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} needs an array of filters")
    return value


_ORDERED: Final[tuple[Any, ...]] = ((int, float), str, datetime)

_COMBINED: Final[Mapping[str, Callable[[Sequence[Predicate]], Predicate]]] = {
    "$and": _all_of,
    "$or": _any_of,
    "$nor": _none_of,
}

_ON_ANY_VALUE: Final[Mapping[str, Callable[[Any], Predicate]]] = {
    "$gt": _compared(lambda value, wanted: value > wanted),
    "$gte": _compared(lambda value, wanted: value >= wanted),
    "$lt": _compared(lambda value, wanted: value < wanted),
    "$lte": _compared(lambda value, wanted: value <= wanted),
}
