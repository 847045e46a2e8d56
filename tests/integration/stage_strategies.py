"""Stages that hypothesis makes up for the pipelines of `pipeline_strategies`."""

from typing import Any, Final

from bson.son import SON
from hypothesis import strategies as st

from tests.integration.document_strategies import FIELD, FILTERS, PATHS, SMALL

Stage = dict[str, Any]
Stages = st.SearchStrategy[Stage]

OTHER: Final = "other"
"""The unsharded collection that pipelines may name."""

SHARDED_OTHER: Final = "sharded_other"
"""A sharded collection with the same documents as `OTHER`."""

_path = FIELD.map(lambda name: f"${name}")
_any_path = PATHS.map(lambda name: f"${name}")
_other = st.sampled_from([OTHER, SHARDED_OTHER])

MATCHES: Final[Stages] = FILTERS.map(lambda query: {"$match": query})

_expressions = st.one_of(
    _any_path,
    st.builds(lambda path: {"$ifNull": [path, 0]}, _any_path),
    st.builds(lambda path: {"$cond": [{"$isArray": path}, {"$size": {"$ifNull": [path, []]}}, path]}, _any_path),
    st.just({"$mod": ["$k", 3]}),
    st.just({"x": "$a", "y": "$n.e"}),
    st.just(["$a", "$b"]),
    st.just({"$let": {"vars": {"v": "$n"}, "in": "$$v.e"}}),
    st.just({"$getField": "c"}),
    st.just("$$ROOT.b"),
    st.just("$$CURRENT.n.f"),
    st.just({"$literal": "$a"}),
    st.just({"$add": ["$k", "$$given"]}),
    st.just({"$map": {"input": {"$cond": [{"$isArray": "$b"}, "$b", []]}, "as": "v", "in": {"$add": ["$$v", "$k"]}}}),
)

_accumulators = st.one_of(
    st.sampled_from(["$sum", "$min", "$max", "$avg"]).flatmap(lambda name: _any_path.map(lambda path: {name: path})),
    st.just({"$count": {}}),
    _path.map(lambda path: {"$sum": {"$size": {"$cond": [{"$isArray": path}, path, []]}}}),
    st.builds(
        lambda path, n, way: {"$topN": {"n": n, "output": path, "sortBy": {"k": way}}},
        _any_path,
        st.integers(1, 4),
        st.sampled_from([1, -1]),
    ),
    st.builds(lambda path: {"$bottom": {"output": path, "sortBy": {"k": 1}}}, _any_path),
    st.builds(lambda path: {"$top": {"output": [path, "$k"], "sortBy": SON([("a", -1), ("k", 1)])}}, _any_path),
    st.builds(lambda path: {"$bottomN": {"n": 2, "output": path, "sortBy": SON([("n.e", 1), ("k", 1)])}}, _any_path),
    st.builds(
        lambda name, path, n: {name: {"input": path, "n": n}},
        st.sampled_from(["$minN", "$maxN"]),
        _any_path,
        SMALL.filter(lambda n: n > 0),
    ),
    st.just(
        {
            "$accumulator": {
                "init": "function() { return 0 }",
                "accumulate": "function(state, k) { return state + k }",
                "accumulateArgs": ["$k"],
                "merge": "function(one, other) { return one + other }",
                "lang": "js",
            }
        }
    ),
)
_unordered = st.one_of(
    st.builds(lambda name, path: {name: path}, st.sampled_from(["$push", "$addToSet"]), _any_path),
    st.just({"$push": "$$ROOT"}),
)
"""Accumulators whose results are lists in no definite order."""

_group_keys = st.one_of(st.none(), _any_path, _expressions, st.just({"a": "$a", "b": "$b"}))

_groups: Stages = st.builds(
    lambda key, fields, lists: {"$group": {"_id": key, **fields, **lists}},
    _group_keys,
    st.dictionaries(st.sampled_from(["m", "o", "p"]), _accumulators, max_size=3),
    st.dictionaries(st.just("s"), _unordered, max_size=1),
)
_after_group: Final[st.SearchStrategy[list[Stage]]] = st.lists(
    st.one_of(
        st.builds(
            lambda operator, low: {"$match": {"_id": {operator: low}}}, st.sampled_from(["$gt", "$eq", "$ne"]), SMALL
        ),
        st.just({"$match": {"_id": None}}),
        st.just({"$match": {"_id.a": 1}}),
        st.just({"$match": {"_id": {"$exists": True}, "m": {"$ne": 2}}}),
        st.just({"$project": {"m": 1}}),
        st.just({"$set": {"t": "$_id"}}),
        st.just({"$count": "groups"}),
        st.just({"$group": {"_id": None, "n": {"$sum": 1}}}),
    ),
    max_size=2,
)

_ways = st.sampled_from([1, -1])
_sort_by_key: Stages = st.builds(
    lambda first, way: {"$sort": SON([*first, ("k", way)])},
    st.lists(st.tuples(PATHS, _ways), max_size=2, unique_by=lambda pair: pair[0]),
    _ways,
)
_whole_numbers = st.integers(1, 12)

PER_DOCUMENT: Final[Stages] = st.one_of(
    MATCHES,
    MATCHES,
    MATCHES,
    st.sampled_from([{"k": 1, "a": 1}, {"b": 0}, {"n.e": 0}, {"k": 1, "n.f": 1, "_id": 0}]).map(
        lambda by: {"$project": by}
    ),
    st.builds(lambda made: {"$project": {"k": 1, "c": made, "n": 1}}, _expressions),
    st.just({"$project": {"k": 1, "b": "$a", "a": "$b"}}),
    st.builds(lambda made: {"$addFields": {"c": made}}, _expressions),
    st.builds(lambda made: {"$set": {"n.g": made}}, _expressions),
    st.builds(lambda made: {"$set": {"a": "$b", "n": {"e": made}}}, _expressions),
    PATHS.map(lambda name: {"$unset": name}),
    FIELD.map(lambda name: {"$unset": [name, "n.f"]}),
    FIELD.map(lambda name: {"$set": {"d": {"$ifNull": [f"${name}", 0]}}}),
    st.just({"$replaceWith": {"k": "$k", "a": "$b", "b": "$a", "n": "$n"}}),
    st.just({"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"b": "$n.e"}]}}}),
    _any_path.map(lambda path: {"$unwind": {"path": path, "preserveNullAndEmptyArrays": True}}),
    _any_path.map(lambda path: {"$unwind": path}),
    st.builds(
        lambda path, index: {"$unwind": {"path": path, "includeArrayIndex": index}},
        _any_path,
        st.sampled_from(["i", "a", "n.i"]),
    ),
    st.just({"$redact": {"$cond": [{"$eq": ["$a", 1]}, "$$PRUNE", "$$KEEP"]}}),
    st.just({"$redact": {"$cond": [{"$eq": ["$e", 1]}, "$$PRUNE", "$$DESCEND"]}}),
    PATHS.map(lambda name: {"$fill": {"output": {name: {"value": 0}}}}),
    st.just({"$fill": {"output": {"a": {"value": "$k"}, "b": {"value": {"$add": ["$k", 1]}}}}}),
    st.just({"$sample": {"size": 10_000}}),
)
"""Stages whose results do not depend on an order. All but ``$unwind`` leave ``k`` unique."""

_windows = st.one_of(
    st.just({"r": {"$documentNumber": {}}}),
    st.just({"r": {"$rank": {}}}),
    st.just({"r": {"$sum": 1, "window": {"documents": ["unbounded", "current"]}}}),
    st.just({"r": {"$push": "$a", "window": {"documents": [-1, 1]}}, "q": {"$max": "$n.e"}}),
    st.just({"r": {"$shift": {"output": "$b", "by": -1, "default": "none"}}}),
    st.just({"n.r": {"$first": "$a"}}),
    st.just({"r": {"$sum": "$k", "window": {"range": [-2, 2]}}}),
)
_partitions = st.one_of(
    st.just({}),
    st.one_of(_any_path, _expressions, st.just({"$mod": ["$k", 2]}), st.just("constant"), st.none(), st.just("$k")).map(
        lambda by: {"partitionBy": by}
    ),
)

ORDERED: Final[Stages] = st.one_of(
    st.builds(
        lambda partition, output: {"$setWindowFields": {**partition, "sortBy": {"k": 1}, "output": output}},
        _partitions,
        _windows,
    ),
    st.builds(
        lambda partition: {"$setWindowFields": {**partition, "output": {"r": {"$sum": "$k"}}}},
        _partitions,
    ),
    st.builds(
        lambda partition, output: {"$fill": {"sortBy": {"k": 1}, **partition, "output": output}},
        st.sampled_from(
            [{}, {"partitionByFields": ["a"]}, {"partitionByFields": ["a", "c"]}, {"partitionBy": {"x": "$n"}}]
        ),
        st.sampled_from(
            [
                {"d": {"method": "locf"}},
                {"a": {"method": "locf"}, "b": {"value": 1}},
                {"d": {"method": "linear"}},
                {"k": {"method": "linear"}, "c": {"method": "locf"}},
            ]
        ),
    ),
    st.builds(
        lambda partition, bounds: {"$densify": {"field": "k", **partition, "range": {"step": 5, "bounds": bounds}}},
        st.sampled_from([{}, {"partitionByFields": ["a"]}, {"partitionByFields": ["n.e", "b"]}]),
        st.sampled_from(["full", [3, 14]]),
    ),
    st.just({"$densify": {"field": "k", "partitionByFields": ["c"], "range": {"step": 4, "bounds": "partition"}}}),
)
"""Stages that sort by ``k``, so that their results are definite as long as it is unique."""

JOINS: Final[Stages] = st.one_of(
    st.builds(
        lambda local, put: {"$lookup": {"from": OTHER, "localField": local, "foreignField": "a", "as": put}},
        PATHS,
        st.sampled_from(["b", "j", "n.j"]),
    ),
    st.builds(
        lambda local: {"$lookup": {"from": SHARDED_OTHER, "localField": local, "foreignField": "a", "as": "j"}},
        PATHS,
    ),
    st.builds(
        lambda name: {
            "$lookup": {
                "from": name,
                "let": {"x": "$k"},
                "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$x"]}}}],
                "as": "b",
            }
        },
        _other,
    ),
    st.builds(
        lambda name: {
            "$lookup": {
                "from": name,
                "localField": "a",
                "foreignField": "a",
                "let": {"x": "$n.e"},
                "pipeline": [{"$project": {"k": 1, "x": "$$x"}}],
                "as": "j",
            }
        },
        _other,
    ),
    st.builds(
        lambda name: {
            "$graphLookup": {
                "from": name,
                "startWith": "$k",
                "connectFromField": "_id",
                "connectToField": "_id",
                "as": "b",
            }
        },
        _other,
    ),
    st.builds(lambda name: {"$unionWith": name}, _other),
    st.builds(lambda name, match: {"$unionWith": {"coll": name, "pipeline": [match]}}, _other, MATCHES),
    st.just({"$unionWith": {"pipeline": [{"$documents": [{"k": 200, "a": 1}, {"k": 201, "b": 2}]}]}}),
)
"""Stages that leave ``k`` unique; the lists in ``j`` are in no definite order."""

_window: Final[st.SearchStrategy[list[Stage]]] = st.one_of(
    st.just([]),
    _whole_numbers.map(lambda number: [{"$limit": number}]),
    _whole_numbers.map(lambda number: [{"$skip": number}]),
    st.tuples(_whole_numbers, _whole_numbers).map(lambda pair: [{"$skip": pair[0]}, {"$limit": pair[1]}]),
    st.tuples(_whole_numbers, _whole_numbers).map(lambda pair: [{"$limit": pair[0]}, {"$limit": pair[1]}]),
)
LAST: Final[st.SearchStrategy[list[Stage]]] = st.one_of(
    st.tuples(_groups, _after_group).map(lambda parts: [parts[0], *parts[1]]),
    st.tuples(_groups, _after_group).map(lambda parts: [parts[0], *parts[1]]),
    st.builds(
        lambda fields, way, window: [
            {"$group": {"_id": {"$mod": ["$k", 5]}, **fields}},
            {"$sort": {"_id": way}},
            *window,
        ],
        st.dictionaries(st.sampled_from(["m", "o"]), _accumulators, max_size=2),
        _ways,
        _window,
    ),
    st.just([{"$count": "n"}]),
    _whole_numbers.map(lambda size: [{"$sample": {"size": size}}, {"$count": "n"}]),
    _expressions.filter(lambda key: isinstance(key, str) or (isinstance(key, dict) and "x" not in key)).map(
        lambda key: [{"$sortByCount": key}]
    ),
    st.just(
        [
            {
                "$bucket": {
                    "groupBy": "$k",
                    "boundaries": [0, 5, 12],
                    "default": "rest",
                    "output": {"n": {"$sum": 1}, "m": {"$max": "$a"}},
                }
            },
            {"$match": {"n": {"$gt": 1}}},
        ]
    ),
    st.just([{"$bucketAuto": {"groupBy": "$k", "buckets": 3}}]),
    st.just(
        [{"$bucketAuto": {"groupBy": "$k", "buckets": 2, "output": {"m": {"$sum": "$k"}}}}, {"$project": {"m": 1}}]
    ),
    st.just([{"$facet": {"n": [{"$count": "n"}], "few": [{"$sort": {"k": 1}}, {"$limit": 2}]}}]),
    st.builds(
        lambda match, group: [
            {
                "$facet": {
                    "g": [match, group, {"$sort": {"_id": 1}}, {"$project": {"_id": 1}}],
                    "n": [match, {"$count": "n"}],
                }
            }
        ],
        MATCHES,
        _any_path.map(lambda key: {"$group": {"_id": key}}),
    ),
)
"""Stages whose results have no ``k`` for a total order, or which end a pipeline here."""

_one_each: Final[Stages] = st.sampled_from(
    [{"$project": {"k": 1, "a": 1, "b": 1}}, {"$set": {"c": {"$ifNull": ["$a", 7]}}}, {"$unset": "n.e"}]
)

SORTED: Final[st.SearchStrategy[list[Stage]]] = st.builds(
    lambda sort, each, window: [sort, *each, *window], _sort_by_key, st.lists(_one_each, max_size=1), _window
)
"""A total order as long as ``k`` is unique, so that the same documents are in the window."""
