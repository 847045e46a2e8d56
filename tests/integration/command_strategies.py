"""Commands and indexes that hypothesis makes up, for comparing a sharded collection with a plain one."""

from typing import Final

from hypothesis import strategies as st

from tests.integration.document_strategies import FILTERS

INDEXES: Final = ("b", "c", "n.e", [("a", -1), ("b", 1)], [("b", 1), ("k", 1)], [("n.f", 1), ("k", -1)], [("$**", 1)])
"""No two of a key's fields are ever arrays, which mongod would refuse."""

_windows = st.fixed_dictionaries(
    # With a unique last field, so that the order is definite.
    {"sort": st.sampled_from([{"k": 1}, {"k": -1}, {"b": 1, "k": 1}, {"n.e": -1, "k": 1}, {"a": -1, "c": 1, "k": -1}])},
    optional={
        "skip": st.integers(0, 8),
        "limit": st.integers(1, 12),
        "projection": st.sampled_from([{"b": 1}, {"n.e": 0}, {"k": 1, "x": "$b"}, {"b": {"$slice": 1}}]),
    },
)
_options = st.fixed_dictionaries(
    {},
    optional={
        "collation": st.sampled_from([{"locale": "en", "strength": 2}, {"locale": "fr"}]),
        "maxTimeMS": st.just(60_000),
    },
)
_changes = st.sampled_from(
    [{"$set": {"b": 3}}, {"$unset": {"c": ""}}, {"$inc": {"k2": 1}}, [{"$set": {"c": ["$b"]}}, {"$unset": "n"}]]
)

COMMANDS: Final = st.one_of(
    st.builds(lambda query, how, other: {"find": "", "filter": query, **how, **other}, FILTERS, _windows, _options),
    st.builds(
        lambda query, skip, limit, other: {"count": "", "query": query, "skip": skip, "limit": limit, **other},
        FILTERS,
        st.integers(0, 5),
        st.integers(0, 9),
        _options,
    ),
    st.builds(
        lambda key, query, other: {"distinct": "", "key": key, "query": query, **other},
        st.sampled_from(["a", "b", "k", "n.e", "n"]),
        FILTERS,
        _options,
    ),
    st.builds(
        lambda query, change: {"update": "", "updates": [{"q": query, "u": change, "multi": True}]}, FILTERS, _changes
    ),
    st.builds(lambda query: {"delete": "", "deletes": [{"q": query, "limit": 0}]}, FILTERS),
)
"""Without the name of the collection, and such that their results are the same whatever the order of the documents."""
