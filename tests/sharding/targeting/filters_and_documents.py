"""Random documents and filters that often match each other.

All values of a run come from a small palette, so that filters match, and near misses (``1`` and ``Decimal128("1.0")``,
``"a"`` and ``"A"``, 2^63 as a double and as a Decimal128) meet each other.
"""

import datetime
from random import Random
from typing import Any

from bson.code import Code
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

PATTERNS = (
    {"a": 1},
    {"a": "hashed"},
    {"a.b": 1},
    {"a.b": "hashed"},
    {"a": 1, "c": 1},
    {"a": 1, "c": "hashed"},
    {"a": "hashed", "c": 1},
    {"a.b": 1, "a.d": 1},
    {"c": 1, "a.b": 1, "d": 1},
    {"a": 1, "a.b": 1},
    {"_id": 1},
    {"_id": "hashed"},
)

# Values that are equal, or nearly so, in ways that targeting has to distinguish.
_KIN: tuple[tuple[Any, ...], ...] = (
    (None,),
    (0, -0.0, Decimal128("0E+3")),
    (1, 1.0, Int64(1), Decimal128("1"), 1.5, Decimal128("1.5")),
    (2, 2.5, Decimal128("2.5"), -1, -1.5, Decimal128("-1.5")),
    (float("nan"), Decimal128("NaN"), 5, float("-inf")),
    (2.0**63, Decimal128(str(2**63)), Int64(2**63 - 1), float("inf")),
    ("", "a", "A", "b", "B"),
    ("a", "a\0", "a\0b", b"a", Code("a")),
    ("a", "ab", "a b", "a.b", "a|b", "\u00e9", "\u00ea", "b\na"),
    (True, False),
    (MinKey(), MaxKey()),
    (Timestamp(1, 1), datetime.datetime(1960, 1, 1), datetime.datetime(2020, 1, 1)),
    (ObjectId(b"\0" * 12), ObjectId(b"\1" * 12)),
)

EXPRESSIONS = (
    *("^a", "^A", "a", "^a|b", r"^a\|", "^a?", "^b*", "^a{0}", "^a$", "^ a", "^a b", "^a#b", "^(?i)A", "^[ab]"),
    *("^ab", "^a|^b", r"\Aa", r"^\Qa\E", r"^\Qa|b\E", r"^a\.b", r"^a.", "^\u00e9?", "^a+", r"^\x61"),
    *("^a\nb", "^", "", r"^a\E?b", "^ab(?#none)?", "^ab#\n?", "^a b ?", r"^\Qab\E*", r"^a\Q\E?", "^ab{0,1}"),
    *("^(a)?b", "^a(b)?", "^\u00e9{0}", r"^\|", r"^a\c\|b"),
)
"""Regular expressions with and without a literal prefix."""

_PATHS = ("a", "a", "a", "c", "c", "d", "a.b", "a.b", "a.d", "a.b.x", "_id", "_id", "z", "a.0")


class Palette:
    """Makes documents and filters from a few values.

    Args:
        random: the source of all randomness.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._values = [value for kin in random.sample(_KIN, 3) for value in kin]

    def scalar(self) -> Any:  # noqa: ANN401 - any BSON value
        """A value that is neither object nor array."""
        return self._random.choice(self._values)

    def document(self) -> dict[str, Any]:
        """A document without ``_id``; its fields are mostly there, and ``a`` is often an object."""
        fields = {"a": self._value(), "c": self.scalar(), "d": self.scalar(), "z": [self.scalar()]}
        return {name: value for name, value in fields.items() if self._random.random() < 0.85}

    def filter(self, depth: int = 2) -> dict[str, Any]:
        """A filter, valid most of the time."""
        chance = self._random.random()
        if depth == 0 or chance < 0.6:
            return {path: self._predicate() for path in self._random.sample(_PATHS, self._random.choice((1, 1, 1, 2)))}
        if chance < 0.75:
            return {"$expr": self._expression(depth)}
        logical = self._random.choice(("$and", "$or", "$or", "$nor"))
        branches = [self.filter(depth - 1) for _ in range(self._random.randint(1, 3))]
        return {**(self.filter(0) if chance > 0.85 else {}), logical: branches}

    def _expression(self, depth: int) -> dict[str, Any]:
        """An expression, mostly a comparison with a constant."""
        if depth and self._random.random() < 0.3:
            count = self._random.randint(1, 3)
            return {self._random.choice(("$and", "$or")): [self._expression(depth - 1) for _ in range(count)]}
        constant = self._value()
        if self._random.random() < 0.5 or isinstance(constant, dict):
            constant = {self._random.choice(("$literal", "$const")): constant}
        operands = [f"${self._random.choice(_PATHS)}", constant]
        self._random.shuffle(operands)
        return {self._random.choice(("$eq", "$eq", "$gt", "$gte", "$lt", "$lte", "$ne", "$cmp")): operands}

    def _value(self) -> Any:  # noqa: ANN401 - any BSON value
        if self._random.random() < 0.5:
            return self.scalar()
        names = self._random.sample(("b", "d", "x"), self._random.randint(0, 2))
        return {name: {"x": self.scalar()} if self._random.random() < 0.2 else self.scalar() for name in names}

    def _predicate(self) -> Any:  # noqa: ANN401 - any BSON value
        chance = self._random.random()
        if chance < 0.3:
            return self._value()
        if chance < 0.35:
            return self._random.choice((Regex(self._random.choice(EXPRESSIONS)), [self.scalar()]))
        operators = self._operators()
        return {"$not": operators} if chance > 0.95 else operators

    def _operators(self) -> dict[str, Any]:
        chance = self._random.random()
        if chance < 0.5:
            names = self._random.sample(("$gt", "$gte", "$lt", "$lte", "$eq", "$ne"), self._random.choice((1, 1, 2)))
            return {name: self._value() for name in names}
        if chance < 0.75:
            operator = self._random.choice(("$in", "$in", "$nin", "$all"))
            return {operator: [self._value() for _ in range(self._random.choice((1, 1, 2, 3)))]}
        return self._random.choice(
            (
                {"$exists": True},
                {"$exists": False},
                {"$type": self._random.choice(("number", "int", "string", 2, ["null", 8.0], "date", -1, "array"))},
                {"$mod": [2, 1]},
                {"$regex": self._random.choice(EXPRESSIONS)},
                {"$regex": self._random.choice(EXPRESSIONS), "$options": self._random.choice(("i", "m", "s", "x"))},
                {"$size": 1},
                {"$elemMatch": {"$gt": 0}},
                {"$in": [Regex(self._random.choice(EXPRESSIONS)), self.scalar()]},
            )
        )
