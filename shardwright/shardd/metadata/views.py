"""View definitions: resolving a view, and the collections that a read of it involves.

A view on unsharded collections is on the same shard as the collections, where mongod runs it. If it needs documents of
other shards, the router has to run it, and receives its definition. Definitions are cached on the primary, because
every change to them passes through its daemon; a secondary reads them each time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import read_options
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import involved_namespaces
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    array_documents,
    decode_document,
    decode_value,
    encode_document,
    index,
    raw_document,
)

READS_OF_VIEWS: Final = frozenset({"find", "aggregate", "count", "distinct", "explain"})
CHANGES_OF_VIEWS: Final = frozenset({"create", "collMod", "drop", "dropDatabase", "renameCollection"})

_SIMPLE: Final = encode_document({"locale": "simple"})
_NESTING_MAX: Final = 20
"""mongod's limit for views on views."""


@dataclass(frozen=True, slots=True)
class _View:
    """A view's definition.

    Attributes:
        on: the collection or view that it reads.
        pipeline: its stages, raw.
        collation: its collation, raw; the simple one by default.
        named: the other collections in its stages.
        time_series: the options of a time-series collection, which is a view of its buckets; None for others.
    """

    on: Namespace
    pipeline: tuple[bytes, ...]
    collation: bytes
    named: tuple[str, ...]
    time_series: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ResolvedView:
    """A view with all views below it resolved.

    Attributes:
        on: the collection at the bottom.
        pipeline: the stages of all views, raw.
        involved: all other namespaces that a read of the view involves: those below it and those in its stages.
        time_series: the options of the time-series collection that it is or reads; None if there is none.
        is_time_series: whether it is a time-series collection itself.
    """

    on: Namespace
    pipeline: tuple[bytes, ...]
    collation: bytes
    involved: tuple[str, ...]
    time_series: Mapping[str, Any] | None = None
    is_time_series: bool = False

    def error(self) -> CommandError:
        """Return CommandOnShardedViewNotSupportedOnMongod, which carries the resolved view to the router."""
        own: dict[str, Any] = {}
        if not self.is_time_series:  # else reads may have any collation, and the default is the buckets'
            own["collation"] = raw_document(self.collation)
        if self.time_series is not None:
            own |= {"timeseriesOptions": dict(self.time_series), "timeseriesMayContainMixedData": False}
        return CommandError(
            ErrorCode.CommandOnShardedViewNotSupportedOnMongod,
            "Resolved views on sharded collections must be executed by mongos",
            extra={
                "resolvedView": {
                    "ns": str(self.on),
                    "pipeline": [raw_document(stage) for stage in self.pipeline],
                    **own,
                }
            },
        )


class Views:
    """The views of the shard's mongod.

    Args:
        is_primary: returns whether the local mongod is primary.

    Attributes:
        generation: incremented whenever a definition may have changed.
    """

    def __init__(self, mongod: LocalMongod, is_primary: Callable[[], bool]) -> None:
        self._mongod = mongod
        self._is_primary = is_primary
        self._known: dict[str, _View | None] = {}
        self.generation = 0

    def forget(self) -> None:
        """Drop all cached definitions, because one may have changed."""
        self.generation += 1
        self._known.clear()

    def is_known_collection(self, namespace: str) -> bool:
        """Whether a namespace is cached as a collection, which suffices for most reads."""
        return namespace in self._known and self._known[namespace] is None

    async def resolve(self, namespace: str) -> ResolvedView | None:
        """Return the resolved view; None if the namespace is not a view."""
        pipeline: list[bytes] = []
        involved: list[str] = []
        view = top = await self._definition(Namespace.parse(namespace))
        while view is not None and len(involved) <= _NESTING_MAX:
            pipeline[:0] = view.pipeline
            involved += (str(view.on), *view.named)
            below = view
            view = await self._definition(view.on)
        if top is None:
            return None
        is_time_series = top.time_series is not None
        return ResolvedView(
            below.on, tuple(pipeline), top.collation, tuple(involved), below.time_series, is_time_series
        )

    async def check_collation(self, namespace: Namespace, collation: Mapping[str, Any]) -> None:
        """Refuse a read with a collation other than the view's. mongod itself compares them.

        Raises OptionNotSupportedOnView, or BadValue and others if the collation is malformed.
        """
        aggregate = {"aggregate": namespace.collection, "pipeline": [], "cursor": {}, "collation": dict(collation)}
        explain = {"explain": aggregate, "verbosity": "queryPlanner", "$readPreference": {"mode": "nearest"}}
        await self._mongod.command(namespace.db, explain)

    async def _definition(self, namespace: Namespace) -> _View | None:
        name = str(namespace)
        if name in self._known:
            return self._known[name]
        generation = self.generation
        found = await read_options(self._mongod, namespace)
        view = None
        if found is not None and found[0] != "collection":
            view = _view(namespace, found[1]) if found[0] == "view" else _time_series(namespace, found[1])
        # If the name does not exist, its creation might go unnoticed.
        if found is not None and self._is_primary() and generation == self.generation:
            self._known[name] = view
        return view


def _view(namespace: Namespace, options: bytes) -> _View:
    fields = index(options)
    pipeline, collation = fields.get(b"pipeline"), fields.get(b"collation")
    return _View(
        namespace.with_collection(decode_value(options, fields[b"viewOn"])),
        () if pipeline is None else tuple(array_documents(options, pipeline)),
        _SIMPLE if collation is None else options[collation[2] : collation[3]],
        () if pipeline is None else tuple(involved_namespaces(options, namespace.db, pipeline[2])),
    )


def _time_series(namespace: Namespace, options: bytes) -> _View:
    """Return a time-series collection as mongod's view that unpacks the measurements in buckets."""
    time_series: dict[str, Any] = decode_document(options)["timeseries"]
    fields = TimeSeriesFields.from_document(time_series)
    unpacking: dict[str, Any] = {"timeField": fields.time_field}
    if fields.meta_field is not None:
        unpacking["metaField"] = fields.meta_field
    unpacking["bucketMaxSpanSeconds"] = fields.span_ms // 1000
    stage = encode_document({"$_internalUnpackBucket": unpacking})
    return _View(namespace.buckets, (stage,), _SIMPLE, (), time_series)
