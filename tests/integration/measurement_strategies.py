"""Reads of measurements that hypothesis makes up, with the stages that mongod rewrites in front of buckets."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bson.son import SON
from hypothesis import strategies as st

Stage = dict[str, Any]

_START: Final = datetime(2024, 1, 1)
_PLACE: Final = {"type": "Point", "coordinates": [3.1, 2.3]}
"""No two sensors are equally far from it."""


@dataclass(frozen=True)
class Read:
    """A pipeline.

    Attributes:
        pipeline: its stages.
        ordered_by: the paths whose values come in a definite order.
        takes_hint: mongod does not refuse it. Of two faults, the one in the hint may be found first on a cluster.
    """

    pipeline: list[Stage]
    ordered_by: tuple[str, ...] = ()
    takes_hint: bool = True


HINTS: Final = st.sampled_from(
    [
        *("by_id", SON([("sensor.id", 1), ("at", 1)]), {"at": -1}, {"value": 1}, {"$natural": 1}, {"$natural": -1}, {}),
        *({"sensor.loc": "2dsphere"}, {"spot": "2dsphere"}, {"data.spot": "2dsphere_bucket"}, {"$hint": "by_id"}),
    ]
)
"""Hints that mongod accepts."""

_times = st.integers(-60, 7500).map(lambda seconds: _START + timedelta(seconds=seconds))
_sensors = st.integers(-1, 10)
_values = st.integers(0, 50)
_rooms = st.integers(0, 3)

_filters: st.SearchStrategy[Stage] = st.one_of(
    st.builds(lambda sensor: {"sensor.id": sensor}, _sensors),
    st.builds(lambda low: {"sensor.id": {"$gte": low}}, _sensors),
    st.builds(lambda room: {"sensor.room": room}, _rooms),
    st.builds(lambda room: {"sensor.room": {"$ne": room}, "value": {"$lt": 40}}, _rooms),
    st.builds(lambda one, other: {"$or": [{"sensor.id": one}, {"sensor.room": other}]}, _sensors, _rooms),
    st.builds(lambda one, other: {"$or": [{"sensor.id": one}, {"value": other}]}, _sensors, _values),
    st.builds(lambda low, high: {"at": {"$gte": low, "$lt": high}}, _times, _times),
    st.builds(lambda low: {"value": {"$gt": low}}, _values),
    st.builds(lambda low: {"$expr": {"$gt": ["$sensor.id", low]}}, _sensors),
    st.builds(lambda low: {"$expr": {"$lt": ["$at", low]}}, _times),
    st.sampled_from(
        [
            {"sensor.loc": {"$geoWithin": {"$centerSphere": [[3, 2], 0.05]}}},
            {"spot": {"$geoWithin": {"$centerSphere": [[3, 2], 0.05]}}},
            {"sensor.missing": {"$exists": False}},
            {"sensor": {"$type": "object"}},
        ]
    ),
)
_matches = _filters.map(lambda found: {"$match": found})

_per_measurement: st.SearchStrategy[Stage] = st.one_of(
    _matches,
    st.sampled_from(
        [
            {"$project": {"sensor": 1, "value": 1, "at": 1}},
            {"$project": {"sensor.id": 1, "at": 1}},
            {"$project": {"sensor.loc": 0}},
            {"$unset": ["sensor.loc", "spot"]},
            {"$addFields": {"next": {"$add": ["$sensor.id", 1]}}},
            {"$addFields": {"sensor.room": "$value"}},
            {"$set": {"sensor": {"id": "$value"}}},
            {"$project": {"sensor": {"id": "$sensor.room"}, "at": 1, "value": 1}},
            {"$unwind": "$sensor"},
            {"$redact": {"$cond": [{"$lt": ["$value", 30]}, "$$KEEP", "$$PRUNE"]}},
        ]
    ),
)

_by_metadata: st.SearchStrategy[Stage] = st.sampled_from(
    [{"sensor.id": 1}, {"sensor.id": -1}, {"sensor": 1}, SON([("sensor.room", 1), ("sensor.id", -1)])]
)
_in_full: st.SearchStrategy[Stage] = st.sampled_from(
    [
        *({"at": 1}, {"at": -1}, SON([("sensor.id", 1), ("at", -1)]), SON([("sensor.id", 1), ("at", 1)])),
        *(SON([("value", 1), ("_id", 1)]), SON([("sensor.room", -1), ("_id", 1)])),
    ]
)


def _window(skip: int, limit: int) -> list[Stage]:
    return [*([{"$skip": skip}] if skip else []), *([{"$limit": limit}] if limit else [])]


_windows = st.builds(_window, st.sampled_from([0, 0, 3, 150]), st.sampled_from([0, 0, 1, 7, 60]))


def _sorted_by_metadata(by: Stage, window: list[Stage], later: list[Stage]) -> Read:
    # Which measurements of one sensor come first is not definite, so those in a window are reduced to their sensors.
    seen = [{"$project": {"_id": 0, **dict.fromkeys(by, 1)}}] if window else later
    return Read([{"$sort": by}, *window, *seen], tuple(by))


_orders: st.SearchStrategy[Read] = st.one_of(
    st.builds(
        _sorted_by_metadata,
        _by_metadata,
        _windows,
        st.lists(st.one_of(_matches, st.just({"$unset": "spot"})), max_size=2),
    ),
    st.builds(lambda by, window: Read([{"$sort": by}, *window], tuple(by)), _in_full, _windows),
)

_grouping: st.SearchStrategy[list[Stage]] = st.sampled_from(
    [
        [{"$group": {"_id": "$sensor.id", "least": {"$min": "$value"}, "greatest": {"$max": "$value"}}}],
        [{"$group": {"_id": "$sensor", "greatest": {"$max": "$value"}}}],
        [{"$group": {"_id": "$sensor.room", "first": {"$min": "$at"}, "last": {"$max": "$at"}}}],
        [{"$group": {"_id": "$value", "n": {"$sum": 1}}}],
        [{"$group": {"_id": None, "n": {"$sum": "$value"}, "mean": {"$avg": "$sensor.id"}}}],
        [{"$sort": SON([("sensor.id", 1), ("at", -1)])}, {"$group": {"_id": "$sensor.id", "v": {"$first": "$value"}}}],
        [{"$sort": SON([("sensor.id", -1), ("at", 1)])}, {"$group": {"_id": "$sensor.id", "v": {"$last": "$value"}}}],
        [{"$sort": {"at": -1}}, {"$group": {"_id": "$sensor.id", "v": {"$first": "$value"}}}],
        [{"$group": {"_id": "$sensor.id", "v": {"$top": {"output": "$value", "sortBy": {"at": -1}}}}}],
        [{"$group": {"_id": "$sensor.id", "v": {"$bottom": {"output": "$value", "sortBy": {"at": 1}}}}}],
        [{"$group": {"_id": "$sensor.room", "v": {"$topN": {"n": 2, "output": "$_id", "sortBy": {"at": 1}}}}}],
        [{"$sort": {"sensor.id": 1}}, {"$group": {"_id": "$sensor.id", "n": {"$sum": 1}}}],
        [{"$sort": {"sensor.id": 1}}, {"$limit": 30}, {"$group": {"_id": "$sensor.id", "n": {"$sum": 1}}}],
        [{"$count": "n"}],
        [{"$match": {"value": {"$gt": 9}}}, {"$count": "n"}],
        [{"$sortByCount": "$sensor.room"}],
        [{"$sample": {"size": 5}}, {"$count": "n"}],
        [{"$limit": 9}, {"$count": "n"}],
        [{"$skip": 9}, {"$limit": 500}, {"$count": "n"}],
        [{"$bucket": {"groupBy": "$sensor.id", "boundaries": [-1, 4, 60], "default": "others"}}],
    ]
)

_windowed: st.SearchStrategy[Read] = st.sampled_from(
    [
        {"partitionBy": "$sensor.id", "sortBy": {"at": 1}, "output": {"sum": {"$sum": "$value"}}},
        {"partitionBy": "$sensor.id", "output": {"sum": {"$sum": "$value"}}},
        {"sortBy": {"sensor.id": 1}, "output": {"rank": {"$rank": {}}}},
        {"partitionBy": {"$mod": ["$value", 3]}, "sortBy": {"at": 1}, "output": {"n": {"$documentNumber": {}}}},
    ]
).map(lambda specification: Read([{"$setWindowFields": specification}]))

_ends = st.one_of(st.just(Read([])), _orders, _orders, _orders, _grouping.map(Read), _windowed)

_distances: st.SearchStrategy[Stage] = st.fixed_dictionaries(
    {}, optional={"maxDistance": st.sampled_from([200_000, 500_000]), "minDistance": st.sampled_from([0, 100_000])}
)
_near_metadata: st.SearchStrategy[Stage] = st.builds(
    lambda key, field, distances: {"near": _PLACE, "key": key, "distanceField": field, **distances},
    st.just("sensor.loc"),
    st.sampled_from(["distance", "distance", "sensor.distance"]),
    _distances,
)
_near_measured: st.SearchStrategy[Stage] = st.builds(
    lambda distances: {"near": _PLACE, "key": "spot", "distanceField": "distance", **distances}, _distances
)
_near_refused: st.SearchStrategy[Stage] = st.sampled_from(
    [
        {"near": _PLACE, "distanceField": "distance"},
        {"near": _PLACE, "key": "sensor.loc", "distanceField": "distance", "query": {"value": 3}},
        {"near": _PLACE, "key": "spot", "distanceField": "distance", "query": {"sensor.id": 3}},
        {"near": _PLACE, "key": "spot", "distanceField": "distance", "includeLocs": "where"},
        {"near": _PLACE, "key": "", "distanceField": "distance"},
        {"near": _PLACE, "key": 5, "distanceField": "distance"},
        {"near": _PLACE, "key": "sensor.loc"},
        {"near": _PLACE, "key": "sensor", "distanceField": "distance"},
        {"near": _PLACE, "key": "sensor.room", "distanceField": "distance"},
    ]
)


def _near(specification: Stage, by: str, stages: list[Stage], end: Read) -> Read:
    ordered = end.ordered_by if end.pipeline or stages else (by,)
    return Read([{"$geoNear": specification}, *stages, *end.pipeline], ordered)


READS: Final[st.SearchStrategy[Read]] = st.one_of(
    st.builds(
        lambda stages, end: Read([*stages, *end.pipeline], end.ordered_by),
        st.lists(_per_measurement, max_size=3),
        _ends,
    ),
    st.builds(_near, _near_metadata, st.just("sensor.id"), st.lists(_matches, max_size=2), _ends),
    st.builds(_near, _near_measured, st.just("distance"), st.lists(_matches, max_size=2), _ends),
    st.builds(
        lambda near, stages: Read([{"$geoNear": near}, *stages], takes_hint=False),
        _near_refused,
        st.lists(_matches, max_size=1),
    ),
    st.builds(
        lambda stage, near: Read([stage, {"$geoNear": near}], takes_hint=False),
        st.one_of(_matches, _by_metadata.map(lambda by: {"$sort": by})),
        st.one_of(_near_metadata, _near_measured),
    ),
)
"""Reads whose results, as a multiset, do not depend on the order of the measurements."""
