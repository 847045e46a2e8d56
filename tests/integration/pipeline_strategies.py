"""Pipelines and options that hypothesis makes up, for comparing a sharded collection with a plain one."""

from typing import Final

from hypothesis import strategies as st

from tests.integration.source_strategies import SOURCES
from tests.integration.stage_strategies import JOINS, LAST, ORDERED, PER_DOCUMENT, SORTED, Stage


@st.composite
def pipelines(draw: st.DrawFn) -> list[Stage]:
    """A pipeline whose result is the same whatever the order of the documents: sorted wherever the order decides."""
    stages: list[Stage] = draw(SOURCES)
    for part in draw(st.permutations(["sorted", "ordered", "joins", "maps"]))[: draw(st.integers(0, 3))]:
        is_unique = not any(name in stage for stage in stages for name in ("$unwind", "$densify"))
        if part == "sorted" and is_unique:
            stages += draw(SORTED)
        elif part == "ordered" and is_unique:
            stages += draw(st.lists(ORDERED, min_size=1, max_size=1))
        elif part == "joins":
            stages += draw(st.lists(JOINS, min_size=1, max_size=1))
        elif part == "maps":
            stages += draw(st.lists(PER_DOCUMENT, max_size=2))
    stages += draw(st.lists(PER_DOCUMENT, max_size=2))
    if draw(st.booleans()):
        stages += draw(LAST)
    return stages


# An index on the shard key would cover some pipelines, and mongod then returns null for a field that is missing.
_hints = st.sampled_from([{"_id": 1}, "_id_", {"$natural": 1}])

OPTIONS: Final = st.fixed_dictionaries(
    {"let": st.just({"given": 2}), "batchSize": st.sampled_from([0, 1, 3, 100]), "hint": _hints},
    optional={
        "allowDiskUse": st.booleans(),
        "collation": st.sampled_from([{"locale": "en", "strength": 2}, {"locale": "fr"}]),
        "comment": st.just("compared"),
        "maxTimeMS": st.just(60_000),
        "readConcern": st.just({"level": "local"}),
    },
)
"""Options of an aggregation that do not change its result, but for the collation."""
