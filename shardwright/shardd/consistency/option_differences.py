"""Collection options that differ among the shards that own chunks, or from the catalog. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.local_mongod.option_values import different_options
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.consistency import Inconsistency
from shardwright.sharding.time_series import TimeSeriesFields

CONFIG_SHARD: Final = "config"
"""Name of the config servers in reports, among the shards' names, as in MongoDB."""


def option_differences(entry: CollectionEntry, of_shards: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an inconsistency if the owners' options differ from each other or from the catalog.

    Args:
        entry: the collection in the catalog, with its default collation and the fields of a time series.
        of_shards: the options of the collection on each owner, as ``listCollections`` shows them.
    """
    versions: list[tuple[Mapping[str, Any], list[str]]] = []
    for shard, options in sorted(of_shards.items()):
        alike = next((shards for each, shards in versions if not different_options(each, options)), None)
        if alike is None:
            versions.append((options, [shard]))
        else:
            alike.append(shard)
    if not all(_are_of_entry(entry, options) for options, _ in versions):
        versions.append((_options_of(entry), [CONFIG_SHARD]))
    if len(versions) < 2:
        return []
    found = [{"options": options, "shards": shards} for options, shards in versions]
    return [Inconsistency.CollectionOptionsMismatch.document(str(entry.namespace), options=found)]


def _are_of_entry(entry: CollectionEntry, options: Mapping[str, Any]) -> bool:
    if options.get("collation") != _options_of(entry).get("collation"):
        return False
    time_series = options.get("timeseries")
    if time_series is None or entry.time_series is None:
        return time_series is entry.time_series
    # A mongod adds the bucket span to options that have only a granularity; the catalog has the requested options.
    return TimeSeriesFields.from_document(time_series).makes_buckets_like(entry.time_series)


def _options_of(entry: CollectionEntry) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if entry.default_collation is not None:
        options["collation"] = dict(entry.default_collation)
    if entry.time_series is not None:
        options["timeseries"] = entry.time_series.to_document()
    return options
