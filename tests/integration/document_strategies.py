"""Documents and filters that hypothesis makes up, for comparing a sharded collection with a plain one."""

from typing import Final

from hypothesis import strategies as st

_FIELDS: Final = ("a", "b", "c")
FIELD: Final = st.sampled_from(_FIELDS)
PATHS: Final = st.sampled_from((*_FIELDS, "n.e", "n.f", "n"))
SMALL: Final = st.integers(-3, 8)

VALUES: Final = st.one_of(SMALL, st.none(), st.sampled_from(["x", "y", "Z", ""]), st.lists(SMALL, max_size=3))
_parts = st.fixed_dictionaries({}, optional={"e": VALUES, "f": VALUES})

_words: Final = st.sampled_from(["one", "one two", "Two two three", "none of them", ""])

DOCUMENTS: Final = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            **{name: VALUES for name in _FIELDS},
            "n": st.one_of(_parts, st.lists(st.one_of(_parts, SMALL), max_size=3), SMALL, st.none()),
            "words": _words,
        },
    ),
    max_size=30,
)

FULL_DOCUMENTS: Final = st.lists(
    st.fixed_dictionaries(
        {**{name: VALUES for name in _FIELDS}, "n": st.fixed_dictionaries({"e": VALUES, "f": VALUES})},
        optional={"words": _words},
    ),
    max_size=30,
)
"""Documents without missing fields: an index that covers a query makes a missing field look like null to mongod."""

_key_numbers = st.integers(0, 30)
_conditions = st.one_of(
    st.builds(
        lambda name, operator, low: {name: {operator: low}}, PATHS, st.sampled_from(["$gte", "$lt", "$ne"]), SMALL
    ),
    st.builds(lambda name, value: {name: value}, PATHS, st.one_of(VALUES, st.just("X"))),
    st.builds(lambda low, high: {"k": {"$gte": low, "$lt": high}}, _key_numbers, _key_numbers),
    st.builds(lambda value: {"k": value}, _key_numbers),
    st.builds(lambda name, exists: {name: {"$exists": exists}}, PATHS, st.booleans()),
    st.builds(lambda name, values: {name: {"$in": values}}, PATHS, st.lists(st.one_of(SMALL, st.none()), max_size=3)),
    st.builds(lambda name, low: {name: {"$elemMatch": {"$gt": low}}}, FIELD, SMALL),
    st.builds(lambda low: {"n": {"$elemMatch": {"e": {"$gt": low}}}}, SMALL),
    st.builds(lambda name, low: {"$expr": {"$gt": [f"${name}", low]}}, PATHS, SMALL),
    st.builds(lambda name, kind: {name: {"$type": kind}}, PATHS, st.sampled_from(["int", "string", "null", "array"])),
    st.builds(lambda name, low: {name: {"$not": {"$gt": low}}}, PATHS, SMALL),
    st.just({"n.0.e": 1}),
    st.just({"k": {"$gte": 3}, "a": {"$ne": 2}}),
)
FILTERS: Final = st.one_of(
    _conditions,
    _conditions,
    st.builds(
        lambda name, parts: {name: parts},
        st.sampled_from(["$or", "$and", "$nor"]),
        st.lists(_conditions, min_size=1, max_size=3),
    ),
)
