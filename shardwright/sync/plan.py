"""Collections without their documents: the plan of those to create at the target, and their comparison. Pure.

The plan also has the refusals: obstacles that are reported before the first write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bson import encode

from shardwright.sync.changes import Value
from shardwright.sync.replication import Replication
from shardwright.wire import rawbson

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

OPTION_DEFAULTS: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "changeStreamPreAndPostImages": {"enabled": False},
}
"""The values of missing options."""

_NOT_COMPARED: Final = frozenset({"uuid", "autoIndexId"})


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
        left_out: collections that the filter selects in databases that are never replicated.
        shards: the zones of each shard, by its id.
    """

    is_sharded: bool
    version: tuple[int, ...]
    identity: str
    collections: Mapping[str, Collection]
    users: Sequence[str] = ()
    left_out: Sequence[str] = ()
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
    for namespace, asked in sorted(replication.shard.items()):
        if not _is_shard_key(asked):
            refusals.append(f"the shard key {dict(asked)} of {namespace} needs fields with 1 or, once, hashed")
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
        there = target.collections.get(each.namespace)
        refusals += [f"{each.namespace} {reason}" for reason in ([] if there is None else _unlike(created, there))]
        refusals += _without_shards(created, target)
        refusals += [f"{each.namespace} {reason}" for reason in not_with_key(created)]
        collections.append(created)
    notes += [f"{each} is not replicated: its database belongs to the deployment" for each in source.left_out]
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


def _is_shard_key(key: Mapping[str, Any]) -> bool:
    parts = [path.split(".") for path in key]
    nests = any(one != other and one == other[: len(one)] for one in parts for other in parts)
    kinds = [value for value in key.values() if isinstance(value, str)]
    numbers = [value for value in key.values() if not isinstance(value, str)]
    is_named = all(all(part and not part.startswith("$") for part in path) for path in parts)
    return bool(key) and is_named and not nests and kinds in ([], ["hashed"]) and all(each == 1 for each in numbers)


def _unlike(created: Collection, there: Collection) -> list[str]:
    """Return the differences that prevent an existing collection of the target from being the planned one."""
    if there.kind != created.kind:
        return [f"is a {there.kind} at the target, a {created.kind} at the source"]
    found = ["is capped at the target"] if there.options.get("capped") else []
    found += [
        f"has another {name} at the target"
        for name in ("collation", "clusteredIndex")
        if created.options.get(name) != there.options.get(name)
    ]
    if None not in (created.key, there.key) and list((created.key or {}).items()) != list((there.key or {}).items()):
        found.append(f"has the shard key {dict(there.key or {})} at the target: name this key with --shard")
    return found


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
    elif target.is_sharded and collection.key is not None:
        key, is_unique = collection.key, collection.is_unique
    elif (there := target.collections.get(collection.namespace)) is not None:
        key, is_unique = there.key, there.is_unique
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


def with_both_keys(one: Collection, other: Collection) -> Collection:
    """Return a collection with both shard keys while the key changes, because writes must select by both.

    The target refuses an upsert without its shard key, and its key may change between any two writes.
    """
    return replace(one, key={**(one.key or {}), **(other.key or {})})


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


def index_changes(
    wanted: Collection, theirs: Collection, *, keeps_expiry: bool, is_merged: bool
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """Compare the indexes of a collection with the planned ones.

    Args:
        is_merged: whether the target keeps indexes of its own, because it had the collection before.

    Returns:
        Commands that change or drop indexes of the target, and the indexes of the source to build after them.
    """
    name = wanted.namespace.partition(".")[2]
    plans = {str(each["name"]): index_at_target(each, keeps_expiry=keeps_expiry) for each in wanted.indexes}
    there = {str(each["name"]): index_at_target(each, keeps_expiry=True) for each in theirs.indexes}
    commands: list[dict[str, Any]] = []
    for each, index in there.items():
        plan = plans.get(each)
        if plan is not None and is_same_but_expiry(plan, index):
            if not is_same_index(plan, index):
                expiry = {"name": each, "expireAfterSeconds": plan["expireAfterSeconds"]}
                commands.append({"collMod": name, "index": expiry})
        elif not is_same(index["key"], theirs.key) and not is_merged:
            commands.append({"dropIndexes": name, "index": each})
    missing = [
        each
        for each in wanted.indexes
        if str(each["name"]) not in there or not is_same_but_expiry(plans[str(each["name"])], there[str(each["name"])])
    ]
    return commands, missing


def expiry_stops(namespace: str, indexes: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the commands after which nothing expires through indexes of a collection, each with its database."""
    database, _, name = namespace.partition(".")
    return [
        (database, {"collMod": name, "index": {"name": str(each["name"]), "expireAfterSeconds": TTL_NEVER}})
        for each in indexes
        if each.get("expireAfterSeconds", TTL_NEVER) != TTL_NEVER
    ]


def id_filter(document: bytes) -> bytes:
    """Return the elements of a query for a document by its ``_id``."""
    return rawbson.element(b"_id", *value_at(document, "_id"))


def key_filter(document: bytes, key: Mapping[str, Any] | None) -> bytes:
    """Return the elements of a query for documents with the same shard key, without ``_id``."""
    return b"".join(
        rawbson.element(path.encode(), rawbson.OBJECT, rawbson.wrap_value(*value_at(document, path), name=b"$eq"))
        for path in key or ()
        if path != "_id"
    )


def value_at(document: bytes, path: str) -> Value:
    """Return the value at a path; null if it is missing."""
    kind, value = rawbson.OBJECT, document
    for part in path.split("."):
        span = rawbson.find(value, part.encode()) if kind == rawbson.OBJECT else None
        if span is None:
            return rawbson.NULL, b""
        kind, value = span[0], value[span[2] : span[3]]
    return kind, value


def shape_problems(
    ours: Collection | None, wanted: Collection | None, theirs: Collection | None, *, has_more: bool = False
) -> list[str]:
    """Describe the differences of a collection.

    Args:
        wanted: its planned form at the target, with shard key and zones.
        has_more: whether the target may have indexes and options of its own, because it had the collection before.
    """
    if ours is None or wanted is None:
        return [] if theirs is None else ["it is only at the target"]
    if theirs is None:
        return ["it is not at the target"]
    if wanted.kind != theirs.kind:
        return [f"it is a {theirs.kind} at the target, a {wanted.kind} at the source"]
    found = [] if has_more else _of_options(wanted.options, theirs.options)
    found += _of_indexes(wanted, theirs, has_more=has_more)
    # The target's users may have sharded a collection that is not sharded at the source.
    if wanted.key is not None and not is_same(wanted.key, theirs.key):
        found.append(f"the shard key is {_text(theirs.key)} at the target instead of {_text(wanted.key)}")
    elif wanted.key is not None and wanted.is_unique != theirs.is_unique:
        found.append("the shard key is unique on one side only")
    if wanted.zones is not None and _zones(wanted) != _zones(theirs):
        found.append("the zones are different at the target")
    return found


def _of_options(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    one, other = [
        {
            name: value
            for name, value in options.items()
            if name not in _NOT_COMPARED and OPTION_DEFAULTS.get(name) != value
        }
        for options in (ours, theirs)
    ]
    return [
        f"the option {name} is different at the target"
        for name in sorted(one.keys() | other.keys())
        if _bytes(one.get(name)) != _bytes(other.get(name))
    ]


def _of_indexes(wanted: Collection, theirs: Collection, *, has_more: bool) -> list[str]:
    ours, there = [
        {str(each["name"]): index_at_target(each, keeps_expiry=False) for each in collection.indexes}
        for collection in (wanted, theirs)
    ]
    found = [
        f"the index {name} is missing or different at the target"
        for name, index in ours.items()
        if name not in there or not is_same_index(there[name], index)
    ]
    if not has_more:
        found += [
            f"the index {name} is only at the target"
            for name, index in there.items()
            if name not in ours and index["key"] != theirs.key
        ]
    return found


def is_same(one: object, other: object) -> bool:
    """Whether two values are the same to a server: the order of their fields and the types of their numbers count."""
    return _bytes(one) == _bytes(other)


def is_same_index(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two indexes are the same, whatever the order of their options."""
    return is_same(dict(sorted(one.items())), dict(sorted(other.items())))


def is_same_but_expiry(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two indexes differ at most in the number of seconds until documents expire."""

    def rest(index: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in index.items() if name != "expireAfterSeconds"}

    return is_same_index(rest(one), rest(other)) and ("expireAfterSeconds" in one) == ("expireAfterSeconds" in other)


def _zones(collection: Collection) -> list[bytes]:
    return sorted(encode({"": [each["min"], each["max"], each["tag"]]}) for each in collection.zones or ())


def _bytes(value: object) -> bytes:
    """Encode a value, so that the order of its fields and the types of its numbers count."""
    return encode({"": value})


def _text(key: Mapping[str, Any] | None) -> str:
    return "none" if key is None else str(dict(key))
