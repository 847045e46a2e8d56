"""Pipelines and documents that hypothesis makes up, for comparing a sharded collection with a plain one."""

from typing import Any, Final

from hypothesis import strategies as st

Stage = dict[str, Any]

OTHER: Final = "other"
"""The unsharded collection that pipelines may name."""

_FIELDS: Final = ("a", "b", "c")
_field = st.sampled_from(_FIELDS)
_path = _field.map(lambda name: f"${name}")
_small = st.integers(-3, 8)

VALUES: Final = st.one_of(_small, st.none(), st.sampled_from(["x", "y", "Z", ""]), st.lists(_small, max_size=3))

DOCUMENTS: Final = st.lists(
    st.fixed_dictionaries({}, optional={name: VALUES for name in _FIELDS}), min_size=0, max_size=30
)

_filters = st.one_of(
    st.builds(lambda name, low: {name: {"$gte": low}}, _field, _small),
    st.builds(lambda name, value: {name: value}, _field, VALUES),
    st.builds(lambda low, high: {"k": {"$gte": low, "$lt": high}}, st.integers(0, 30), st.integers(0, 30)),
    st.builds(lambda value: {"k": value}, st.integers(0, 30)),
    st.builds(lambda name: {name: {"$exists": True}}, _field),
)

_accumulators = st.one_of(
    st.sampled_from(["$sum", "$min", "$max"]).flatmap(lambda name: _path.map(lambda path: {name: path})),
    st.just({"$count": {}}),
    _path.map(lambda path: {"$sum": {"$size": {"$cond": [{"$isArray": path}, path, []]}}}),
    st.builds(
        lambda path, n, way: {"$topN": {"n": n, "output": path, "sortBy": {"k": way}}},
        _path,
        st.integers(1, 4),
        st.sampled_from([1, -1]),
    ),
    st.builds(lambda path: {"$bottom": {"output": path, "sortBy": {"k": 1}}}, _path),
    st.builds(
        lambda name, path, n: {name: {"input": path, "n": n}},
        st.sampled_from(["$minN", "$maxN"]),
        _path,
        _small.filter(lambda n: n > 0),
    ),
)

_groups = st.builds(
    lambda key, fields: {"$group": {"_id": key, **fields}},
    st.one_of(st.none(), _path, st.just({"$mod": ["$k", 3]}), st.just({"a": "$a", "b": "$b"})),
    st.dictionaries(st.sampled_from(["m", "n", "o"]), _accumulators, max_size=3),
)

_sort_by_key = st.sampled_from([{"k": 1}, {"k": -1}, {"a": 1, "k": 1}, {"b": -1, "k": -1}]).map(
    lambda by: {"$sort": by}
)
_whole_numbers = st.integers(1, 12)

PER_DOCUMENT: Final = st.one_of(
    _filters.map(lambda query: {"$match": query}),
    st.just({"$project": {"k": 1, "a": 1}}),
    st.just({"$project": {"b": 0}}),
    _path.map(lambda path: {"$addFields": {"c": path}}),
    _field.map(lambda name: {"$unset": name}),
    _field.map(lambda name: {"$set": {"d": {"$ifNull": [f"${name}", 0]}}}),
    st.just({"$replaceWith": {"k": "$k", "a": "$b", "b": "$a"}}),
    _path.map(lambda path: {"$unwind": {"path": path, "preserveNullAndEmptyArrays": True}}),
    st.just({"$redact": {"$cond": [{"$eq": ["$a", 1]}, "$$PRUNE", "$$KEEP"]}}),
    _field.map(lambda name: {"$fill": {"output": {name: {"value": 0}}}}),
)
"""Stages that leave ``k`` alone and whose results do not depend on an order."""

_WHOLE: Final = st.one_of(
    st.just({"$lookup": {"from": OTHER, "localField": "a", "foreignField": "a", "as": "b"}}),
    st.just(
        {
            "$lookup": {
                "from": OTHER,
                "let": {"x": "$k"},
                "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$x"]}}}],
                "as": "b",
            }
        }
    ),
    st.just(
        {
            "$graphLookup": {
                "from": OTHER,
                "startWith": "$k",
                "connectFromField": "_id",
                "connectToField": "_id",
                "as": "b",
            }
        }
    ),
    st.just({"$unionWith": OTHER}),
    st.just({"$setWindowFields": {"sortBy": {"k": 1}, "output": {"r": {"$documentNumber": {}}}}}),
    st.just(
        {
            "$setWindowFields": {
                "partitionBy": {"$mod": ["$k", 2]},
                "sortBy": {"k": 1},
                "output": {"r": {"$sum": 1, "window": {"documents": ["unbounded", "current"]}}},
            }
        }
    ),
    st.just({"$fill": {"sortBy": {"k": 1}, "output": {"d": {"method": "locf"}}}}),
)

_LAST: Final = st.one_of(
    _groups,
    st.just({"$count": "n"}),
    _path.map(lambda path: {"$sortByCount": path}),
    st.just(
        {
            "$bucket": {
                "groupBy": "$k",
                "boundaries": [0, 5, 12],
                "default": "rest",
                "output": {"n": {"$sum": 1}, "m": {"$max": "$a"}},
            }
        }
    ),
    st.just({"$bucketAuto": {"groupBy": "$k", "buckets": 3}}),
    st.just({"$facet": {"n": [{"$count": "n"}], "few": [{"$sort": {"k": 1}}, {"$limit": 2}]}}),
    st.just({"$densify": {"field": "k", "range": {"step": 5, "bounds": "full"}}}),
)
"""Stages whose results have no ``k`` for a total order, or which end a pipeline here."""

_window: Final[st.SearchStrategy[list[Stage]]] = st.one_of(
    _whole_numbers.map(lambda number: [{"$limit": number}]),
    _whole_numbers.map(lambda number: [{"$skip": number}]),
    st.tuples(_whole_numbers, _whole_numbers).map(lambda pair: [{"$skip": pair[0]}, {"$limit": pair[1]}]),
)
_one_each = st.just({"$project": {"k": 1, "a": 1, "b": 1}})

_sorted_part: Final[st.SearchStrategy[list[Stage]]] = st.tuples(
    _sort_by_key, st.lists(_one_each, max_size=1), _window
).map(lambda parts: [parts[0], *parts[1], *parts[2]])
"""A total order as long as ``k`` is unique, so that the same documents are in the window."""


@st.composite
def pipelines(draw: st.DrawFn) -> list[Stage]:
    """A pipeline whose result is the same whatever the order of the documents: sorted wherever the order decides."""
    filters = draw(st.lists(_filters.map(lambda query: {"$match": query}), max_size=2))
    stages: list[Stage] = [*filters, *(draw(_sorted_part) if draw(st.booleans()) else [])]
    stages += draw(st.lists(PER_DOCUMENT, max_size=3))
    stages += draw(st.lists(_WHOLE, max_size=1))
    stages += draw(st.lists(PER_DOCUMENT, max_size=2))
    if draw(st.booleans()):
        stages.append(draw(_LAST))
    return stages
