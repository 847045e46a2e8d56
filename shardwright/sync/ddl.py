"""Making collections at the target equal to the source's, at the beginning and after events or comparisons.

An event only identifies the collection. The action follows from a comparison of both ends. So events may be repeated,
and changes without an event are found too. Collections are identified by their UUIDs, so that events of an earlier
collection never affect a later one of the same name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pymongo.errors import OperationFailure

from shardwright.sync.changes import Change
from shardwright.sync.copying import Copier, planned_ranges
from shardwright.sync.ends import NAMESPACE_NOT_FOUND, End, repeated
from shardwright.sync.placing import match_key, match_zones, presplit, shard
from shardwright.sync.plan import (
    Collection,
    Deployment,
    at_target,
    create_command,
    index_at_target,
    index_command,
    refusal,
)
from shardwright.sync.replication import Replication
from shardwright.sync.shapes import DEFAULTS, problems
from shardwright.sync.store import RANGES, Store
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

NAMESPACE_EXISTS: Final = 48
INDEX_NOT_FOUND: Final = 27

_OPTIONS_OF_COLL_MOD: Final = ("validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages")

_log = get_logger("sync.ddl")


class Catalog:
    """The replicated collections.

    Attributes:
        namespaces: the target's namespace of each collection, by its UUID at the source.
        has_indexes: whether the target has the source's indexes; it gets them after the copy, which is faster without.
        keeps_expiry: whether documents expire at the target as well, once applications write there.
    """

    def __init__(
        self,
        replication: Replication,
        source: End,
        target: End,
        store: Store,
        writer: Writer,
        deployments: list[Deployment],
    ) -> None:
        self.namespaces: dict[bytes, str] = {}
        self.keeps_expiry = False
        self.has_indexes = False
        self._replication = replication
        self._source, self._target, self._store, self._writer = source, target, store, writer
        self._of_source, self._of_target = deployments

    def know(self, collection: Collection) -> None:
        """Follow a collection of the source from now on."""
        if collection.uuid is not None:
            self.namespaces[collection.uuid] = collection.namespace
        namespace = collection.namespace
        self._writer.source_keys[namespace] = collection.key
        self._writer.collections[namespace] = at_target(collection, self._replication, self._of_target)

    def planned(self, collection: Collection) -> Collection:
        """Return the planned form of a source collection at the target."""
        return at_target(collection, self._replication, self._of_target)

    def kinds(self) -> dict[str, str]:
        """Return the kinds of all collections and views, by namespace."""
        there = {*self.namespaces.values()}
        return {
            namespace: each.kind
            for namespace, each in self._writer.collections.items()
            if each.kind == "view" or namespace in there
        }

    async def problems(self, namespace: str) -> list[str]:
        """Return the differences of a collection outside its documents; see `shapes.problems`."""
        ours = await self._collection(self._source, namespace, self._of_source)
        theirs = await self._collection(self._target, namespace, self._of_target)
        wanted = None if ours is None else self.planned(ours)
        return problems(ours, wanted, theirs, has_more=namespace in self._writer.merged)

    def stored(self) -> list[dict[str, Any]]:
        """Return the collections in the form stored with the position."""
        return [{"uuid": uuid, "ns": namespace} for uuid, namespace in self.namespaces.items()]

    async def stored_of_target(self) -> list[dict[str, Any]]:
        """Return the collections in stored form for the opposite direction: by the UUIDs of the target."""
        found = []
        for namespace in sorted({*self.namespaces.values()}):
            uuid = await repeated(lambda namespace=namespace: self._target.uuid(namespace))  # type: ignore[misc]
            if uuid is not None:
                found.append({"uuid": uuid, "ns": namespace})
        return found

    def restore(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Continue with the stored collections. The target still has them; the source may have changed since."""
        by_uuid = {each.uuid: each for each in self._of_source.collections.values()}
        for each in stored:
            uuid, namespace = bytes(each["uuid"]), each["ns"]
            self.namespaces[uuid] = namespace
            ours, theirs = by_uuid.get(uuid), self._of_target.collections.get(namespace)
            self._writer.source_keys[namespace] = ours.key if ours else theirs.key if theirs else None
            if theirs is not None and ours is not None and theirs.key is not None:
                wanted = at_target(ours, self._replication, self._of_target)
                self._writer.collections[namespace] = _with_both_keys(theirs, wanted)
            elif theirs is not None:
                self._writer.collections[namespace] = theirs
            else:
                lost = Collection(namespace, uuid=uuid)  # neither end has the collection any more; an event will follow
                self._writer.collections[namespace] = at_target(ours or lost, self._replication, self._of_target)

    async def create(self, collection: Collection) -> None:
        """Create a collection at the target, sharded if it should be."""
        database = collection.namespace.partition(".")[0]
        await self._run(database, create_command(collection), NAMESPACE_EXISTS)
        if collection.key is not None:
            await shard(self._run, collection)

    async def presplit(self, collection: Collection) -> None:
        """Split a new collection of the target, so that the copy writes to all shards."""
        await presplit(self._source, self._target, collection, sorted(self._of_target.shards))

    async def match_all(self) -> None:
        """Compare all collections."""
        for namespace in sorted({*self.namespaces.values()}):
            await self.match(namespace)

    async def let_expire(self) -> None:
        """Enable TTL expiry at the target, where applications write from now on."""
        self.keeps_expiry = True
        for namespace in sorted({*self.namespaces.values()}):
            known = self._writer.collections.get(namespace)
            if known is not None and any("expireAfterSeconds" in each for each in known.indexes):
                await self.match(namespace)

    async def match(self, namespace: str) -> None:
        """Give a collection or view of the target the options, indexes and shard key of the source."""
        database = namespace.partition(".")[0]
        ours = await self._collection(self._source, namespace, self._of_source)
        theirs = await self._collection(self._target, namespace, self._of_target)
        if ours is None or refusal(ours) is not None:
            return
        wanted = at_target(ours, self._replication, self._of_target)
        if theirs is None:
            if ours.kind == "view" or ours.uuid in self.namespaces:
                await self.create(wanted)
            return
        if ours.kind != theirs.kind:
            return
        if ours.kind == "view":
            if ours.options != theirs.options:
                await self._run(database, {"collMod": namespace.partition(".")[2], **ours.options})
            return
        if self.namespaces.get(ours.uuid or b"") != namespace:
            return
        self._writer.source_keys[namespace] = ours.key
        await self._match_options(wanted, theirs)
        if self.has_indexes:
            await self._match_indexes(wanted, theirs)
        if wanted.key is not None and wanted.key != theirs.key:
            self._writer.collections[namespace] = _with_both_keys(wanted, theirs)
            await match_key(self._run, wanted, theirs)
        elif wanted.key is not None:
            await match_zones(self._run, wanted, theirs.zones)
        self._writer.collections[namespace] = wanted

    async def apply(self, change: Change, copier: Copier) -> None:
        """Apply a DDL event."""
        description = change.description or {}
        uuid = change.uuid
        if change.kind == "create":
            if self._replication.filter.has(change.namespace) and uuid not in self.namespaces:
                await self._created(change.namespace, uuid, description)
        elif change.kind == "drop":
            if uuid is None:
                await self._dropped_view(change.namespace)
            elif (known := self.namespaces.pop(uuid, None)) is not None:
                await self._dropped(known, copier)
        elif change.kind == "rename":
            to = description.get("to") or {}
            await self._renamed(uuid, f"{to.get('db')}.{to.get('coll')}", copier)
        elif change.kind in ("createIndexes", "dropIndexes", "modify", "shardCollection"):
            if self._replication.filter.has(change.namespace):
                await self.match(change.namespace)
        elif change.kind != "dropDatabase":
            _log.warning("An event of an unknown kind is not followed", kind=change.kind, namespace=change.namespace)

    async def adopt(self, change: Change) -> bool:
        """Adopt an unknown UUID after resharding; return whether the event's collection is a replicated one.

        Resharding gives a collection another UUID.
        """
        if change.uuid is None or change.namespace not in self.namespaces.values():
            return False
        if await repeated(lambda: self._source.uuid(change.namespace)) != change.uuid:
            return False
        self.namespaces = {uuid: each for uuid, each in self.namespaces.items() if each != change.namespace}
        self.namespaces[change.uuid] = change.namespace
        return True

    async def _created(self, namespace: str, uuid: bytes | None, described: Mapping[str, Any]) -> None:
        """Create the collection in an event. The source may have dropped or renamed it since."""
        options = {name: value for name, value in described.items() if name not in ("idIndex", "to", "uuid")}
        kind = "view" if "viewOn" in options else "timeseries" if "timeseries" in options else "collection"
        found = Collection(namespace, kind, options, uuid)
        reason = refusal(found)
        if reason is not None:
            _log.warning("A new collection cannot be replicated", namespace=namespace, error=reason)
            return
        self.know(found)
        await self.create(self._writer.collections[namespace])

    async def _dropped(self, namespace: str, copier: Copier) -> None:
        async with copier.stopped(namespace):
            await self._forget_ranges(namespace, copier)
            database, _, name = namespace.partition(".")
            await self._run(database, {"drop": name}, NAMESPACE_NOT_FOUND)

    async def _forget_ranges(self, namespace: str, copier: Copier) -> None:
        for each in copier.drop(namespace):
            await self._store.fenced(RANGES, {"_id": each["_id"]}, {"done": True})

    async def _dropped_view(self, namespace: str) -> None:
        there = await self._collection(self._target, namespace, self._of_target)
        here = await self._collection(self._source, namespace, self._of_source)
        if there is not None and there.kind == "view" and here is None and self._replication.filter.has(namespace):
            database, _, name = namespace.partition(".")
            await self._run(database, {"drop": name}, NAMESPACE_NOT_FOUND)
            self._writer.collections.pop(namespace, None)

    async def _renamed(self, uuid: bytes | None, to: str, copier: Copier) -> None:
        known = None if uuid is None else self.namespaces.get(uuid)
        if known == to or uuid is None:
            return
        if known is not None and not self._replication.filter.has(to):
            self.namespaces.pop(uuid)
            await self._dropped(known, copier)
            return
        if not self._replication.filter.has(to):
            return
        for replaced in [each for each, namespace in self.namespaces.items() if namespace == to]:
            self.namespaces.pop(replaced)
            # At the target the rename itself replaces the collection. A separate drop, repeated after an interruption,
            # would drop the renamed collection.
            async with copier.stopped(to):
                await self._forget_ranges(to, copier)
        if known is None:
            found = await self._collection(self._source, to, self._of_source)
            if found is None or found.uuid != uuid:
                return  # it has another name by now; a later event follows
            await self._created(to, uuid, found.options)
            ranges = await planned_ranges(self._source, to, compares=True)
            await self._store.add_ranges(ranges)
            copier.add([each for each in await self._store.ranges() if each["ns"] == to])
            return
        async with copier.stopped(known):
            self.namespaces[uuid] = to
            self._writer.collections[to] = self._writer.collections.pop(known)
            self._writer.source_keys[to] = self._writer.source_keys.pop(known)
            command = {"renameCollection": known, "to": to, "dropTarget": True}
            await self._run("admin", command, NAMESPACE_NOT_FOUND)
            for each in copier.ranges:
                if each["ns"] == known:
                    each["ns"] = to
                    await self._store.fenced(RANGES, {"_id": each["_id"]}, {"ns": to})
        # Earlier changes of its indexes and options were looked up under a name that the source no longer has.
        await self.match(to)

    async def _match_options(self, wanted: Collection, theirs: Collection) -> None:
        changed = {
            name: wanted.options.get(name, DEFAULTS[name])
            for name in _OPTIONS_OF_COLL_MOD
            if wanted.options.get(name, DEFAULTS[name]) != theirs.options.get(name, DEFAULTS[name])
        }
        if changed and wanted.namespace not in self._writer.merged:
            database, _, name = wanted.namespace.partition(".")
            await self._run(database, {"collMod": name, **changed})

    async def _match_indexes(self, wanted: Collection, theirs: Collection) -> None:
        database, _, name = wanted.namespace.partition(".")
        keeps = self.keeps_expiry
        plans = {str(each["name"]): index_at_target(each, keeps_expiry=keeps) for each in wanted.indexes}
        there = {str(each["name"]): index_at_target(each, keeps_expiry=True) for each in theirs.indexes}
        for each, index in there.items():
            plan = plans.get(each)
            if plan is not None and _same_but_expiry(plan, index) and plan != index:
                expiry = {"name": each, "expireAfterSeconds": plan["expireAfterSeconds"]}
                await self._run(database, {"collMod": name, "index": expiry})
            elif plan != index and index["key"] != theirs.key and wanted.namespace not in self._writer.merged:
                await self._run(database, {"dropIndexes": name, "index": each}, INDEX_NOT_FOUND)
        missing = [
            each
            for each in wanted.indexes
            if str(each["name"]) not in there
            or not _same_but_expiry(plans[str(each["name"])], there[str(each["name"])])
        ]
        if missing:
            await self._run(database, index_command(wanted.namespace, missing, keeps_expiry=keeps))

    async def _collection(self, end: End, namespace: str, deployment: Deployment) -> Collection | None:
        database, _, name = namespace.partition(".")
        found = await repeated(lambda: end.collections(database, is_sharded=deployment.is_sharded, named=name))
        return found[0] if found else None

    async def _run(self, database: str, command: Mapping[str, Any], *harmless: int) -> None:
        majority: dict[str, Any] = {**command, "writeConcern": {"w": "majority"}}
        try:
            await repeated(lambda: self._target.command(database, majority))
        except OperationFailure as error:
            if error.code not in harmless:
                raise


def _with_both_keys(one: Collection, other: Collection) -> Collection:
    """Return a collection with both shard keys while the key changes, because writes must select by both.

    The target refuses an upsert without its shard key, and its key may change between any two writes.
    """
    return replace(one, key={**(one.key or {}), **(other.key or {})})


def _same_but_expiry(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two indexes differ at most in the number of seconds until documents expire."""

    def rest(index: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in index.items() if name != "expireAfterSeconds"}

    return rest(one) == rest(other) and ("expireAfterSeconds" in one) == ("expireAfterSeconds" in other)
