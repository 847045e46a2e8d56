"""First stages of pipelines: filters, searches by place or by text, and documents without a collection."""

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

from tests.integration.document_strategies import DOCUMENTS, FILTERS
from tests.integration.stage_strategies import MATCHES, Stage

SEARCH_INDEXES: Final = ([("point", "2dsphere")], [("pair", "2d")], [("words", "text")])
"""The indexes that the searches need, each on a field of its own."""


def places(number: int) -> dict[str, Any]:
    """Return the place of a document, a different one for each number; one in four has none."""
    if number % 4 == 0:
        return {}
    return {"point": {"type": "Point", "coordinates": [number, 0]}, "pair": [number, 0]}


# No two whole numbers are equally far from a whole number and a quarter, so that the order is definite.
_longitudes = st.integers(0, 30).map(lambda number: number + 0.25)
_near: Final[st.SearchStrategy[dict[str, Any]]] = st.one_of(
    _longitudes.map(lambda x: {"key": "point", "near": {"type": "Point", "coordinates": [x, 0]}}),
    _longitudes.map(lambda x: {"key": "point", "near": [x, 0], "spherical": True}),
    _longitudes.map(lambda x: {"key": "pair", "near": [x, 0]}),
    st.builds(lambda x, far: {"key": "pair", "near": [x, 0], "maxDistance": far}, _longitudes, st.integers(0, 9)),
    st.builds(
        lambda x, least: {"key": "point", "near": {"type": "Point", "coordinates": [x, 0]}, "minDistance": least},
        _longitudes,
        st.integers(0, 1_000_000),
    ),
)
_geo_near: st.SearchStrategy[Stage] = st.builds(
    lambda near, more, put: {"$geoNear": {**near, **more, "distanceField": put}},
    _near,
    st.fixed_dictionaries(
        {}, optional={"query": FILTERS, "includeLocs": st.just("n.at"), "distanceMultiplier": st.just(0.5)}
    ),
    st.sampled_from(["c", "far.from"]),
)

_text: st.SearchStrategy[Stage] = st.builds(
    lambda words, more: {"$match": {"$text": {"$search": words}, **more}},
    st.sampled_from(["one", "two", "three one", "two -one", '"two three"', "none"]),
    st.sampled_from([{}, {"k": {"$gte": 3, "$lt": 20}}, {"a": {"$ne": 2}}]),
)
_scored: Final[st.SearchStrategy[list[Stage]]] = st.sampled_from(
    [
        [],
        # A mongod alone refuses a projection right behind the sort (16410), which a cluster leaves to the merger.
        [{"$sort": {"score": {"$meta": "textScore"}, "k": 1}}, {"$limit": 1000}],
        [{"$set": {"c": {"$meta": "textScore"}}}],
        [{"$sort": {"score": {"$meta": "textScore"}, "k": -1}}, {"$skip": 1}, {"$limit": 3}],
    ]
)

_documents: st.SearchStrategy[Stage] = DOCUMENTS.map(
    lambda documents: {"$documents": [{**each, "k": number} for number, each in enumerate(documents)]}
)

SOURCES: Final[st.SearchStrategy[list[Stage]]] = st.one_of(
    st.lists(MATCHES, max_size=2),
    st.lists(MATCHES, max_size=2),
    st.lists(MATCHES, max_size=2),
    _geo_near.map(lambda stage: [stage]),
    st.tuples(_text, _scored).map(lambda parts: [parts[0], *parts[1]]),
    _documents.map(lambda stage: [stage]),
)


def reads_no_collection(pipeline: Sequence[Stage]) -> bool:
    """Whether the pipeline is one of a database."""
    return bool(pipeline) and "$documents" in pipeline[0]


def takes_no_hint(pipeline: Sequence[Stage]) -> bool:
    """Whether the first stage allows no index but its own."""
    first = pipeline[0] if pipeline else {}
    return reads_no_collection(pipeline) or "$geoNear" in first or "$text" in first.get("$match", {})
