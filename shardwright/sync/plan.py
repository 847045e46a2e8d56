"""The plan of a replication: collections to create at the target, and refusals before the first write. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.sync.replication import Replication

TTL_NEVER: Final = 2**31 - 1
"""Disables TTL at the target: while changes are followed, documents expire at the source only."""

VERSION_MIN: Final = (6, 0)

_CARRIED_OPTIONS: Final = frozenset(
    {
        "autoIndexId",
        "changeStreamPreAndPostImages",
        "clusteredIndex",
        "collation",
        "validationAction",
        "validationLevel",
        "validator",
    }
)

_NOT_OF_INDEX: Final = frozenset({"ns", "v"})


@dataclass(frozen=True)
class Collection:
    """A collection or view of a deployment.

    Attributes:
        kind: ``collection``, ``view`` or ``timeseries``.
        uuid: None for views.
        indexes: as ``listIndexes`` shows them, except the one on ``_id``.
        key: its shard key; None if it is not sharded.
        is_unique: whether the shard key is unique.
        zones: its zone ranges with ``min``, ``max`` and ``tag``, in any order; None if they are not carried.
    """

    namespace: str
    kind: str = "collection"
    options: Mapping[str, Any] = field(default_factory=dict)
    uuid: bytes | None = None
    indexes: Sequence[Mapping[str, Any]] = ()
    key: Mapping[str, Any] | None = None
    is_unique: bool = False
    zones: Sequence[Mapping[str, Any]] | None = ()


@dataclass(frozen=True)
class Deployment:
    """The properties and contents of one end.

    Attributes:
        is_sharded: whether it is reached through a router.
        identity: its cluster id, or the name of its replica set.
        collections: by namespace, the ones that the filter selects, including kinds that cannot be replicated.
        shards: the zones of each shard, by its id.
    """

    is_sharded: bool
    version: tuple[int, ...]
    identity: str
    collections: Mapping[str, Collection]
    users: Sequence[str] = ()
    shards: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The result of the preflight.

    Attributes:
        refusals: reasons why the replication cannot begin, each with the name of its subject.
        notes: things that are not carried, but do not prevent the replication.
        collections: to be created at the target, in their form there.
    """

    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    collections: tuple[Collection, ...]


def planned(
    replication: Replication,
    source: Deployment,
    target: Deployment,
    *,
    merges: bool,
    counts: Mapping[str, int],
    carries_users: bool = False,
) -> Plan:
    """Compare both ends before the first write.

    Args:
        counts: documents of the target by namespace, 0 or more than 0.
    """
    refusals = [
        f"{name} runs version {'.'.join(map(str, end.version))}: 6.0 or newer is needed"
        for name, end in (("the source", source), ("the target", target))
        if end.version < VERSION_MIN
    ]
    if source.identity == target.identity:
        refusals.append("source and target are the same deployment")
    if replication.shard and not target.is_sharded:
        refusals.append("--shard needs a sharded target")
    notes, collections = [], []
    for namespace in sorted(replication.shard.keys() - source.collections.keys()):
        refusals.append(f"{namespace} of --shard is not a collection that is replicated")
    for each in source.collections.values():
        reason = refusal(each)
        if reason is not None:
            if not replication.filter.is_excluded(each.namespace):
                refusals.append(f"{each.namespace} {reason}; leave it out with --exclude {each.namespace}")
            continue
        if counts.get(each.namespace) and not merges:
            refusals.append(f"{each.namespace} has documents at the target; --existing merge makes it equal the source")
        created = at_target(each, replication, target)
        if each.zones and created.zones is None:
            notes.append(f"the zones of {each.namespace} are not carried")
        refusals += _without_shards(created, target)
        refusals += [f"{each.namespace} {reason}" for reason in not_with_key(created)]
        collections.append(created)
    if not carries_users:
        notes += [f"the user or role {each} is not carried" for each in source.users]
    return Plan(tuple(refusals), tuple(notes), tuple(collections))


def refusal(collection: Collection) -> str | None:
    """Return the reason why a collection cannot be replicated; None if it can."""
    if collection.namespace.partition(".")[2].startswith("system."):
        return "is a system collection, which change streams do not show"
    if collection.kind == "timeseries":
        return "is a time-series collection, whose buckets change streams do not show"
    if collection.options.get("capped"):
        return "is capped: the order of its documents and what it has dropped cannot be followed"
    if collection.kind == "view":
        return None
    unknown = sorted(collection.options.keys() - _CARRIED_OPTIONS - {"uuid"})
    return f"has the option {unknown[0]}, which is not carried" if unknown else None


def _without_shards(created: Collection, target: Deployment) -> list[str]:
    """Describe the zones of a collection that no shard of the target has."""
    zones = {str(each["tag"]) for each in created.zones or ()}
    missing = sorted(zones - {zone for each in target.shards.values() for zone in each})
    return [
        f"{created.namespace} has ranges of the zone {zone}, which no shard of the target has: "
        "use sh.addShardToZone there, or --zones leave"
        for zone in missing
    ]


def not_with_key(collection: Collection) -> list[str]:
    """Return the reasons why a collection cannot have its shard key."""
    if collection.key is None:
        return []
    key = list(collection.key)
    return [
        f"has the unique index {index['name']}, which does not begin with the shard key {dict(collection.key)}"
        for index in collection.indexes
        if index.get("unique") and list(index["key"])[: len(key)] != key
    ]


def may_repeat_ids(collection: Collection, created: Collection) -> bool:
    """Whether shards of the source may have documents with the same ``_id`` that the target cannot all hold.

    Every shard has a unique index on ``_id`` of its own. With the same shard key, the target places documents in the
    same way.
    """
    key = collection.key
    return key is not None and set(key) != {"_id"} and list(key.items()) != list((created.key or {}).items())


def at_target(collection: Collection, replication: Replication, target: Deployment) -> Collection:
    """Return a collection in its form at the target."""
    asked = replication.shard.get(collection.namespace)
    key: Mapping[str, Any] | None
    if asked is not None and replication.is_reversed:
        there = target.collections.get(collection.namespace)
        key, is_unique = (there.key, there.is_unique) if there else (None, False)
    elif asked is not None:
        key, is_unique = asked, False
    elif target.is_sharded:
        key, is_unique = collection.key, collection.is_unique
    else:
        key, is_unique = None, False
    is_same = key is not None and list(key.items()) == list((collection.key or {}).items())
    return Collection(
        collection.namespace,
        collection.kind,
        collection.options,
        None,
        collection.indexes,
        None if collection.kind == "view" else key,
        is_unique,
        collection.zones if is_same and replication.zones else None,
    )


def create_command(collection: Collection) -> dict[str, Any]:
    """Return the command that creates a collection or view."""
    name = collection.namespace.partition(".")[2]
    options = {name: value for name, value in collection.options.items() if name not in ("uuid", "autoIndexId")}
    return {"create": name, **options}


def index_command(namespace: str, indexes: Sequence[Mapping[str, Any]], *, keeps_expiry: bool) -> dict[str, Any]:
    """Return the command that creates indexes; unless ``keeps_expiry``, nothing expires through them."""
    return {
        "createIndexes": namespace.partition(".")[2],
        "indexes": [index_at_target(each, keeps_expiry=keeps_expiry) for each in indexes],
    }


def index_at_target(index: Mapping[str, Any], *, keeps_expiry: bool) -> dict[str, Any]:
    """Return an index in its form at the target."""
    found = {name: value for name, value in index.items() if name not in _NOT_OF_INDEX}
    if "expireAfterSeconds" in found and not keeps_expiry:
        found["expireAfterSeconds"] = TTL_NEVER
    return found


def key_filter(document: Mapping[str, Any], key: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the query for exactly one document by ``_id`` and shard key."""
    found: dict[str, Any] = {"_id": document["_id"]}
    for path in key or ():
        if path != "_id":
            found[path] = {"$eq": _at(document, path)}
    return found


def _at(document: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any BSON value
    value: Any = document
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
