"""Making collections at the target equal to the source's, at the beginning and after events or comparisons.

An event only identifies the collection. The action follows from a comparison of both ends. So events may be repeated,
and changes without an event are found too. Collections are identified by their UUIDs, so that events of an earlier
collection never affect a later one of the same name.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from shardwright.sync.changes import Change
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.commands import run_command
from shardwright.sync.copying import Copier, planned_ranges
from shardwright.sync.ends import NAMESPACE_NOT_FOUND, End, at_once, repeated
from shardwright.sync.locks import Locks
from shardwright.sync.placing import build_indexes, match_key, match_zones, presplit, shard
from shardwright.sync.plan import (
    OPTION_DEFAULTS,
    Collection,
    Deployment,
    at_target,
    create_command,
    expiry_stops,
    index_at_target,
    index_changes,
    is_same,
    is_same_but_expiry,
    refusal,
    shape_problems,
    with_both_keys,
)
from shardwright.sync.replication import Replication
from shardwright.sync.store import RANGES, Store
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

NAMESPACE_EXISTS: Final = 48
INDEX_NOT_FOUND: Final = 27

RESHARD: Final = "reshardCollection"

INDEXES_MAX: Final = 500
"""Number of collections whose indexes a repeated comparison reads. Thousands would keep a processor busy."""

BUILDS_MAX: Final = 2
"""Maximum number of collections that are compared at a time, because a comparison may build indexes. A server builds
the indexes of three (``maxNumActiveUserIndexBuilds``), and one of these builds is for `Catalog.build_for_ever`."""

_OPTIONS_OF_COLL_MOD: Final = ("validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages")

_log = get_logger("sync.ddl")


class Catalog:
    """The replicated collections.

    Attributes:
        namespaces: the target's namespace of each collection, by its UUID at the source.
        refused: reasons why collections created since the plan are not replicated, by namespace.
        has_indexes: whether the target has the source's indexes; it gets them after the copy, which is faster without.
        keeps_expiry: whether documents expire at the target as well, once applications write there.
        listed: a time of the source after the plan has read the UUIDs. The copy reads later, so it includes all changes
            up to this time.
        has_adopted: whether UUIDs were adopted since the collections were last stored.
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
        self.refused: dict[str, str] = {}
        self.keeps_expiry = False
        self.listed = NO_TIME
        self.has_adopted = False
        self.has_indexes = False
        self._recorded: dict[bytes, str] = {}
        self._matched: dict[str, tuple[Collection | None, Collection | None]] = {}
        self._matched_until = ""
        self._replication = replication
        self._source, self._target, self._store, self._writer = source, target, store, writer
        self._of_source, self._of_target = deployments
        # A comparison must not give a collection an index or an option while an event drops or renames it. Other
        # collections do not wait: an index build may last for hours.
        self._locks = Locks()
        self._unbuilt: asyncio.Queue[str] = asyncio.Queue()
        self._asked: set[str] = set()

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

    @property
    def present(self) -> Mapping[str, Collection]:
        """All collections and views, in their form at the target."""
        return self._writer.collections

    async def problems(self, namespace: str) -> list[str]:
        """Return the differences of a collection outside its documents; see `plan.shape_problems`."""
        ours = await self._collection(self._source, namespace, self._of_source)
        theirs = await self._collection(self._target, namespace, self._of_target)
        wanted = None if ours is None else self.planned(ours)
        return shape_problems(ours, wanted, theirs, has_more=namespace in self._writer.merged)

    def stored(self) -> dict[str, Any]:
        """Return the fields that are stored with the position."""
        self._recorded = dict(self.namespaces)
        collections = {uuid.hex(): namespace for uuid, namespace in self.namespaces.items()}
        return {"collections": collections, "merged": sorted(self._writer.merged), "listed": self.listed}

    def changed(self) -> tuple[dict[str, Any], list[str]]:
        """Return only the stored fields that have changed since the last call: there may be thousands.

        Returns:
            The fields to set, and the names of the fields to remove.
        """
        before, self._recorded = self._recorded, dict(self.namespaces)
        self.has_adopted = False
        now = {uuid: each for uuid, each in self.namespaces.items() if before.get(uuid) != each}
        fields: dict[str, Any] = {f"collections.{uuid.hex()}": namespace for uuid, namespace in now.items()}
        fields["merged"] = sorted(self._writer.merged)
        return fields, [f"collections.{uuid.hex()}" for uuid in before.keys() - self.namespaces.keys()]

    async def stored_of_target(self) -> dict[str, str]:
        """Return the collections in stored form for the opposite direction: by the UUIDs of the target."""
        # Applications wait for this, so it must not take a request for each collection.
        theirs, ours = await self._listed(self._target, self._of_target), {*self.namespaces.values()}
        return {each.uuid.hex(): name for name, each in theirs.items() if each.uuid is not None and name in ours}

    def restore(self, stored: Mapping[str, str]) -> None:
        """Continue with the stored collections. The target still has them; the source may have changed since."""
        by_uuid = {each.uuid: each for each in self._of_source.collections.values()}
        self._recorded = {bytes.fromhex(uuid): namespace for uuid, namespace in stored.items()}
        for uuid, namespace in self._recorded.items():
            self.namespaces[uuid] = namespace
            ours, theirs = by_uuid.get(uuid), self._of_target.collections.get(namespace)
            self._writer.source_keys[namespace] = ours.key if ours else theirs.key if theirs else None
            if theirs is not None and ours is not None and theirs.key is not None:
                wanted = at_target(ours, self._replication, self._of_target)
                self._writer.collections[namespace] = with_both_keys(theirs, wanted)
            elif theirs is not None:
                self._writer.collections[namespace] = theirs
            else:
                lost = Collection(namespace, uuid=uuid)  # neither end has the collection any more; an event will follow
                self._writer.collections[namespace] = at_target(ours or lost, self._replication, self._of_target)

        for found in self._of_source.collections.values():
            if found.kind == "view":
                self.know(found)

    async def plan_again(self) -> list[Collection]:
        """Create the collections of the source, and return them; drop everything else that was replicated.

        The events by which collections were dropped or renamed are lost.
        """
        here = {name: each for name, each in self._of_source.collections.items() if refusal(each) is None}
        for namespace in sorted({*self.namespaces.values()}):
            there = self._of_target.collections.get(namespace)
            if namespace not in here or (there is not None and there.kind != here[namespace].kind):
                database, _, name = namespace.partition(".")
                await self._run(database, {"drop": name}, NAMESPACE_NOT_FOUND)
                self._writer.merged.discard(namespace)
        self.namespaces.clear()
        self._writer.collections.clear()
        for each in here.values():
            self.know(each)
        await self.create_all([self.planned(each) for each in here.values()])
        return list(here.values())

    async def create_all(self, collections: Sequence[Collection]) -> None:
        """Create collections at the target, sharded if they should be, and then views."""
        for are_views in (False, True):
            await at_once(partial(self.create, each) for each in collections if (each.kind == "view") is are_views)

    async def create(self, collection: Collection) -> None:
        """Create a collection at the target, sharded if it should be."""
        database = collection.namespace.partition(".")[0]
        await self._run(database, create_command(collection), NAMESPACE_EXISTS)
        if collection.key is not None:
            await shard(self._run, collection)

    async def presplit(self, collection: Collection) -> None:
        """Split a new collection of the target, so that the copy writes to all shards."""
        await presplit(self._source, self._target, collection, sorted(self._of_target.shards))

    async def match_all(self, indexes_max: int | None = None) -> None:
        """Compare all collections and views, and note the ones that are not replicated.

        Args:
            indexes_max: number of collections whose indexes are compared although nothing else has changed. Each call
                continues after the previous one. None compares all.
        """
        ours = await self._listed(self._source, self._of_source)
        theirs = await self._listed(self._target, self._of_target)
        # Change streams do not show all of these, such as time-series collections.
        reasons = {name: reason for name, each in ours.items() if (reason := refusal(each)) is not None}
        for namespace, reason in reasons.items():
            self._refuse(namespace, reason)
        self.refused = {namespace: reason for namespace, reason in self.refused.items() if namespace in reasons}
        names = sorted(self.present)
        now = {each: (ours.get(each), theirs.get(each)) for each in names}
        start = bisect_right(names, self._matched_until)
        rotated = [*names[start:], *names[:start]][:indexes_max]
        self._matched_until = rotated[-1] if rotated else ""
        chosen = sorted({*rotated, *(each for each in names if self._matched.get(each) != now[each])})
        await at_once((partial(self._match_alone, each) for each in chosen), BUILDS_MAX)
        self._matched = now

    async def stop_expiry(self) -> None:
        """Disable TTL expiry at the target, before any change is applied.

        The target still has older states of documents that live on at the source. Collections that the target had
        before the replication keep the TTL indexes that only the target has.
        """
        commands: list[tuple[str, dict[str, Any]]] = []
        for namespace in sorted({*self.namespaces.values()}):
            theirs, ours = (each.collections.get(namespace) for each in (self._of_target, self._of_source))
            indexes = theirs.indexes if theirs else []
            if namespace in self._writer.merged:
                wanted = [index_at_target(each, keeps_expiry=True) for each in (ours.indexes if ours else ())]
                indexes = [
                    each
                    for each in indexes
                    if any(is_same_but_expiry(index_at_target(each, keeps_expiry=True), index) for index in wanted)
                ]
            commands += expiry_stops(namespace, indexes)
        await at_once(partial(self._run, *each, NAMESPACE_NOT_FOUND, INDEX_NOT_FOUND) for each in commands)

    async def let_expire(self) -> None:
        """Enable TTL expiry at the target, where applications write from now on."""
        self.keeps_expiry = True
        for namespace in sorted({*self.namespaces.values()}):
            known = self._writer.collections.get(namespace)
            if known is not None and any("expireAfterSeconds" in each for each in known.indexes):
                await self._match_alone(namespace)

    async def _match_alone(self, namespace: str) -> None:
        async with self._locks.held(namespace):
            await self._match(namespace, builds=True)

    async def build_for_ever(self) -> None:
        """Build the indexes that events ask for. Later events do not wait for them, because a build may last for hours.

        The position may be after such an event. If this process ends, the next one compares all collections.
        """
        while True:
            namespace = await self._unbuilt.get()
            self._asked.discard(namespace)
            await self._match_alone(namespace)
            self._unbuilt.task_done()

    async def wait_built(self) -> None:
        """Wait for the indexes of all events that are applied."""
        await self._unbuilt.join()

    def _ask_build(self, namespace: str) -> None:
        if namespace not in self._asked:
            self._asked.add(namespace)
            self._unbuilt.put_nowait(namespace)

    async def _match(self, namespace: str, *, builds: bool) -> None:
        """Give a collection or view of the target the options, indexes and shard key of the source.

        Args:
            builds: whether to build indexes now, rather than by `build_for_ever`.
        """
        database = namespace.partition(".")[0]
        ours = await self._collection(self._source, namespace, self._of_source)
        theirs = await self._collection(self._target, namespace, self._of_target)
        if ours is None or refusal(ours) is not None:
            return
        wanted = at_target(ours, self._replication, self._of_target)
        if theirs is None:
            if ours.kind == "view" or self.namespaces.get(ours.uuid or b"") == namespace:
                await self.create(wanted)
            return
        if ours.kind != theirs.kind:
            return
        if ours.kind == "view":
            if not is_same(ours.options, theirs.options):
                await self._run(database, {"collMod": namespace.partition(".")[2], **ours.options})
            return
        if self.namespaces.get(ours.uuid or b"") != namespace:
            return
        self._writer.source_keys[namespace] = ours.key
        if wanted.key is None:
            # Users of the target may have sharded it, or it was sharded under another name.
            wanted = replace(wanted, key=theirs.key, is_unique=theirs.is_unique)
        await self._match_options(wanted, theirs)
        if self.has_indexes:
            await self._match_indexes(wanted, theirs, builds=builds)
        if wanted.key is not None and not is_same(wanted.key, theirs.key):
            self._writer.collections[namespace] = with_both_keys(wanted, theirs)
            await match_key(self._run, wanted, theirs)
        elif wanted.key is not None:
            await match_zones(self._run, wanted, theirs.zones)
        self._writer.collections[namespace] = wanted

    async def apply(self, change: Change, copier: Copier) -> None:
        """Apply a DDL event."""
        known, to = self.namespaces.get(change.uuid or b""), (change.description or {}).get("to") or {}
        async with self._locks.held(change.namespace, known or "", f"{to.get('db')}.{to.get('coll')}"):
            await self._apply(change, copier)

    async def _apply(self, change: Change, copier: Copier) -> None:
        description = change.description or {}
        uuid = change.uuid
        if change.kind not in ("create", RESHARD) and not await self._is_earlier(change):
            self.adopt(change)
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
        elif change.kind == RESHARD:
            if (known := self.namespaces.get(uuid or b"")) is not None and "reshardUUID" in description:
                self._resharded(known, bytes(description["reshardUUID"]))
            if self._replication.filter.has(change.namespace):
                await self._match(change.namespace, builds=False)
        elif change.kind in ("createIndexes", "dropIndexes", "modify", "shardCollection"):
            if self._replication.filter.has(change.namespace):
                await self._match(change.namespace, builds=False)
        elif change.kind != "dropDatabase":
            _log.warning("An event of an unknown kind is not followed", kind=change.kind, namespace=change.namespace)

    def adopt(self, change: Change) -> bool:
        """Adopt an unknown UUID after resharding; return whether the event's collection is a replicated one.

        Resharding gives a collection another UUID, and not all versions have an event for it. Everything else that
        replaces a collection has events, and those are applied first. So the order of the events decides. The source
        may have dropped, renamed or resharded the collection again since.
        """
        if change.uuid is None or change.uuid in self.namespaces or change.time <= self.listed:
            return False
        if change.namespace not in self.namespaces.values():
            return False
        self._resharded(change.namespace, change.uuid)
        return True

    def _resharded(self, namespace: str, uuid: bytes) -> None:
        self.namespaces = {known: each for known, each in self.namespaces.items() if each != namespace}
        self.namespaces[uuid] = namespace
        self._matched.pop(namespace, None)
        self.has_adopted = True

    async def _is_earlier(self, change: Change) -> bool:
        """Whether an event is about an earlier collection than the known one of the same name, which is still there."""
        if change.uuid is None or change.uuid in self.namespaces:
            return False
        known = [uuid for uuid, namespace in self.namespaces.items() if namespace == change.namespace]
        return bool(known) and await repeated(lambda: self._source.uuid(change.namespace)) in known

    def _refuse(self, namespace: str, reason: str) -> None:
        if not self._replication.filter.is_excluded(namespace) and namespace not in self.refused:
            self.refused[namespace] = reason
            _log.warning("A collection cannot be replicated", namespace=namespace, error=reason)

    async def _created(self, namespace: str, uuid: bytes | None, described: Mapping[str, Any]) -> bool:
        """Create the collection in an event, unless it is refused. The source may have dropped or renamed it since."""
        options = {name: value for name, value in described.items() if name not in ("idIndex", "to", "uuid")}
        # A time-series collection is a view of its buckets.
        is_series = "timeseries" in options or str(options.get("viewOn", "")).startswith("system.buckets.")
        kind = "timeseries" if is_series else "view" if "viewOn" in options else "collection"
        found = Collection(namespace, kind, options, uuid)
        reason = refusal(found)
        if reason is not None:
            self._refuse(namespace, reason)
            return False
        self.know(found)
        await self.create(self._writer.collections[namespace])
        return True

    async def _dropped(self, namespace: str, copier: Copier) -> None:
        async with copier.stopped(namespace):
            await self._forget_ranges(namespace, copier)
            database, _, name = namespace.partition(".")
            await self._run(database, {"drop": name}, NAMESPACE_NOT_FOUND)
            self._writer.dropped(namespace)

    async def _forget_ranges(self, namespace: str, copier: Copier, *, spared: bytes | None = None) -> None:
        for each in copier.drop(namespace, spared=spared):
            await self._store.fenced(RANGES, {"_id": each["_id"]}, {"done": True})

    async def _dropped_view(self, namespace: str) -> None:
        there = await self._collection(self._target, namespace, self._of_target)
        here = await self._collection(self._source, namespace, self._of_source)
        is_gone = here is None or here.kind != "view"
        if there is not None and there.kind == "view" and is_gone and self._replication.filter.has(namespace):
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
        replaced = [known_uuid for known_uuid, namespace in self.namespaces.items() if namespace == to]
        for former in replaced:
            self.namespaces.pop(former)
            # At the target the rename itself replaces the collection. A separate drop, repeated after an interruption,
            # would drop the renamed collection. After an interruption, its ranges may have the new name already.
            async with copier.stopped(to):
                await self._forget_ranges(to, copier, spared=None if known is None else uuid)
        if known is None:
            found = await self._collection(self._source, to, self._of_source)
            # If it has another name by now, a later event follows.
            if found is None or found.uuid != uuid or not await self._created(to, uuid, found.options):
                if replaced:  # nothing takes its place at the target
                    await self._dropped(to, copier)
                return
            ranges = await repeated(lambda: planned_ranges(self._source, to, uuid, compares=True))
            await self._store.add_ranges(ranges)
            copier.add(await self._store.ranges(to))
            return
        async with copier.stopped(known):
            self.namespaces[uuid] = to
            self._writer.renamed(known, to)
            command = {"renameCollection": known, "to": to, "dropTarget": True}
            await self._run("admin", command, NAMESPACE_NOT_FOUND)
            for each in copier.ranges:
                if each["ns"] == known:
                    moved = {"ns": to, "uuid": uuid}  # the range may have the UUID from before a resharding
                    each |= moved
                    await self._store.fenced(RANGES, {"_id": each["_id"]}, moved)
        # Earlier changes of its indexes and options were looked up under a name that the source no longer has.
        await self._match(to, builds=False)

    async def _match_options(self, wanted: Collection, theirs: Collection) -> None:
        changed = {
            name: wanted.options.get(name, OPTION_DEFAULTS[name])
            for name in _OPTIONS_OF_COLL_MOD
            if not is_same(
                wanted.options.get(name, OPTION_DEFAULTS[name]), theirs.options.get(name, OPTION_DEFAULTS[name])
            )
        }
        if changed and wanted.namespace not in self._writer.merged:
            database, _, name = wanted.namespace.partition(".")
            await self._run(database, {"collMod": name, **changed})

    async def _match_indexes(self, wanted: Collection, theirs: Collection, *, builds: bool) -> None:
        is_merged = wanted.namespace in self._writer.merged
        commands, missing = index_changes(wanted, theirs, keeps_expiry=self.keeps_expiry, is_merged=is_merged)
        for each in commands:
            await self._run(wanted.namespace.partition(".")[0], each, INDEX_NOT_FOUND)
        if missing and not builds:
            self._ask_build(wanted.namespace)
        elif missing:
            await build_indexes(self._run, wanted.namespace, missing, keeps_expiry=self.keeps_expiry)

    async def _listed(self, end: End, deployment: Deployment) -> dict[str, Collection]:
        found = await repeated(lambda: end.listed(self._replication.filter, is_sharded=deployment.is_sharded))
        return {each.namespace: each for each in found}

    async def _collection(self, end: End, namespace: str, deployment: Deployment) -> Collection | None:
        database, _, name = namespace.partition(".")
        found = await repeated(lambda: end.collections(database, is_sharded=deployment.is_sharded, named=name))
        return found[0] if found else None

    async def _run(self, database: str, command: Mapping[str, Any], *harmless: int) -> None:
        await run_command(self._store, self._target, database, command, *harmless)
