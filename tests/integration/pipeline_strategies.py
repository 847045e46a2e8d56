"""Pipelines and documents that hypothesis makes up, for comparing a sharded collection with a plain one."""

from typing import Any, Final

from bson.son import SON
from hypothesis import strategies as st

Stage = dict[str, Any]
Stages = st.SearchStrategy[Stage]

OTHER: Final = "other"
"""The unsharded collection that pipelines may name."""

SHARDED_OTHER: Final = "sharded_other"
"""A sharded collection with the same documents as `OTHER`."""

_FIELDS: Final = ("a", "b", "c")
_field = st.sampled_from(_FIELDS)
_paths = st.sampled_from((*_FIELDS, "n.e", "n.f", "n"))
_path = _field.map(lambda name: f"${name}")
_any_path = _paths.map(lambda name: f"${name}")
_small = st.integers(-3, 8)
_other = st.sampled_from([OTHER, SHARDED_OTHER])

VALUES: Final = st.one_of(_small, st.none(), st.sampled_from(["x", "y", "Z", ""]), st.lists(_small, max_size=3))
_parts = st.fixed_dictionaries({}, optional={"e": VALUES, "f": VALUES})

DOCUMENTS: Final = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            **{name: VALUES for name in _FIELDS},
            "n": st.one_of(_parts, st.lists(st.one_of(_parts, _small), max_size=3), _small, st.none()),
        },
    ),
    min_size=0,
    max_size=30,
)

_key_numbers = st.integers(0, 30)
_conditions = st.one_of(
    st.builds(
        lambda name, operator, low: {name: {operator: low}}, _paths, st.sampled_from(["$gte", "$lt", "$ne"]), _small
    ),
    st.builds(lambda name, value: {name: value}, _paths, st.one_of(VALUES, st.just("X"))),
    st.builds(lambda low, high: {"k": {"$gte": low, "$lt": high}}, _key_numbers, _key_numbers),
    st.builds(lambda value: {"k": value}, _key_numbers),
    st.builds(lambda name, exists: {name: {"$exists": exists}}, _paths, st.booleans()),
    st.builds(lambda name, values: {name: {"$in": values}}, _paths, st.lists(st.one_of(_small, st.none()), max_size=3)),
    st.builds(lambda name, low: {name: {"$elemMatch": {"$gt": low}}}, _field, _small),
    st.builds(lambda low: {"n": {"$elemMatch": {"e": {"$gt": low}}}}, _small),
    st.builds(lambda name, low: {"$expr": {"$gt": [f"${name}", low]}}, _paths, _small),
    st.builds(lambda name, kind: {name: {"$type": kind}}, _paths, st.sampled_from(["int", "string", "null", "array"])),
    st.builds(lambda name, low: {name: {"$not": {"$gt": low}}}, _paths, _small),
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
_matches: Stages = FILTERS.map(lambda query: {"$match": query})

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
        _small.filter(lambda n: n > 0),
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
            lambda operator, low: {"$match": {"_id": {operator: low}}}, st.sampled_from(["$gt", "$eq", "$ne"]), _small
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

_sort_by_key: Stages = st.sampled_from(
    [{"k": 1}, {"k": -1}, {"a": 1, "k": 1}, {"b": -1, "k": -1}, {"n.e": 1, "k": 1}, {"n": -1, "k": 1}]
).map(lambda by: {"$sort": by})
_whole_numbers = st.integers(1, 12)

PER_DOCUMENT: Final[Stages] = st.one_of(
    _matches,
    _matches,
    _matches,
    st.sampled_from([{"k": 1, "a": 1}, {"b": 0}, {"n.e": 0}, {"k": 1, "n.f": 1, "_id": 0}]).map(
        lambda by: {"$project": by}
    ),
    st.builds(lambda made: {"$project": {"k": 1, "c": made, "n": 1}}, _expressions),
    st.just({"$project": {"k": 1, "b": "$a", "a": "$b"}}),
    st.builds(lambda made: {"$addFields": {"c": made}}, _expressions),
    st.builds(lambda made: {"$set": {"n.g": made}}, _expressions),
    st.builds(lambda made: {"$set": {"a": "$b", "n": {"e": made}}}, _expressions),
    _paths.map(lambda name: {"$unset": name}),
    _field.map(lambda name: {"$unset": [name, "n.f"]}),
    _field.map(lambda name: {"$set": {"d": {"$ifNull": [f"${name}", 0]}}}),
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
    _paths.map(lambda name: {"$fill": {"output": {name: {"value": 0}}}}),
    st.just({"$fill": {"output": {"a": {"value": "$k"}, "b": {"value": {"$add": ["$k", 1]}}}}}),
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

_JOINS: Final[Stages] = st.one_of(
    st.builds(
        lambda local, put: {"$lookup": {"from": OTHER, "localField": local, "foreignField": "a", "as": put}},
        _paths,
        st.sampled_from(["b", "j", "n.j"]),
    ),
    st.builds(
        lambda local: {"$lookup": {"from": SHARDED_OTHER, "localField": local, "foreignField": "a", "as": "j"}},
        _paths,
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
    st.builds(lambda name, match: {"$unionWith": {"coll": name, "pipeline": [match]}}, _other, _matches),
    st.just({"$unionWith": {"pipeline": [{"$documents": [{"k": 200, "a": 1}, {"k": 201, "b": 2}]}]}}),
)
"""Stages that leave ``k`` unique; the lists in ``j`` are in no definite order."""

_LAST: Final[st.SearchStrategy[list[Stage]]] = st.one_of(
    st.tuples(_groups, _after_group).map(lambda parts: [parts[0], *parts[1]]),
    st.tuples(_groups, _after_group).map(lambda parts: [parts[0], *parts[1]]),
    st.just([{"$count": "n"}]),
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
        _matches,
        _any_path.map(lambda key: {"$group": {"_id": key}}),
    ),
)
"""Stages whose results have no ``k`` for a total order, or which end a pipeline here."""

_window: Final[st.SearchStrategy[list[Stage]]] = st.one_of(
    _whole_numbers.map(lambda number: [{"$limit": number}]),
    _whole_numbers.map(lambda number: [{"$skip": number}]),
    st.tuples(_whole_numbers, _whole_numbers).map(lambda pair: [{"$skip": pair[0]}, {"$limit": pair[1]}]),
    st.tuples(_whole_numbers, _whole_numbers).map(lambda pair: [{"$limit": pair[0]}, {"$limit": pair[1]}]),
)
_one_each: Final[Stages] = st.sampled_from(
    [{"$project": {"k": 1, "a": 1, "b": 1}}, {"$set": {"c": {"$ifNull": ["$a", 7]}}}, {"$unset": "n.e"}]
)

_sorted_part: Final[st.SearchStrategy[list[Stage]]] = st.builds(
    lambda sort, each, window: [sort, *each, *window], _sort_by_key, st.lists(_one_each, max_size=1), _window
)
"""A total order as long as ``k`` is unique, so that the same documents are in the window."""


@st.composite
def pipelines(draw: st.DrawFn) -> list[Stage]:
    """A pipeline whose result is the same whatever the order of the documents: sorted wherever the order decides."""
    stages: list[Stage] = draw(st.lists(_matches, max_size=2))
    for part in draw(st.permutations(["sorted", "ordered", "joins", "maps"]))[: draw(st.integers(0, 3))]:
        is_unique = not any(name in stage for stage in stages for name in ("$unwind", "$densify"))
        if part == "sorted" and is_unique:
            stages += draw(_sorted_part)
        elif part == "ordered" and is_unique:
            stages += draw(st.lists(ORDERED, min_size=1, max_size=1))
        elif part == "joins":
            stages += draw(st.lists(_JOINS, min_size=1, max_size=1))
        elif part == "maps":
            stages += draw(st.lists(PER_DOCUMENT, max_size=2))
    stages += draw(st.lists(PER_DOCUMENT, max_size=2))
    if draw(st.booleans()):
        stages += draw(_LAST)
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
