"""Preparation of a run: plan the replication, or find its position to resume."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from bson import decode
from bson.timestamp import Timestamp
from pymongo.read_concern import ReadConcern

from shardwright.sync.batches import Limits
from shardwright.sync.changes import Value, id_of
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.copying import WORKERS, Copier, planned_ranges
from shardwright.sync.ddl import Catalog
from shardwright.sync.ends import End, at_once, repeated
from shardwright.sync.following import Follower
from shardwright.sync.plan import Collection, Deployment, Plan, may_repeat_ids, planned
from shardwright.sync.ranges import ids_filter
from shardwright.sync.replication import Replication
from shardwright.sync.store import SYNC, Store, shown
from shardwright.sync.users import Users
from shardwright.sync.verification import Verifier
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

_log = get_logger("sync.preparing")


class RefusedError(Exception):
    """The preflight has found obstacles; nothing was written."""

    def __init__(self, refusals: Sequence[str]) -> None:
        super().__init__("\n".join(refusals))
        self.refusals = tuple(refusals)


@dataclass(frozen=True)
class Options:
    """Options of a replication.

    Attributes:
        merges: whether the target may already have documents; it is made equal to the source.
        source_writes: whether checkpoints are recorded at the source, too.
        blocks_writes: whether a commit blocks the writes of users at the source.
        reversible: whether a commit keeps the data for `reverse`.
    """

    merges: bool = False
    source_writes: bool = True
    workers: int = WORKERS
    blocks_writes: bool = True
    reversible: bool = False
    users: bool = False
    limits: Limits = Limits()  # noqa: RUF009 - it is frozen


@dataclass
class Parts:
    """The components of a running replication.

    Attributes:
        users: carries users and roles; None if they are not carried.
        start: the start of the change stream.
    """

    store: Store
    writer: Writer
    catalog: Catalog
    copier: Copier
    follower: Follower
    verifier: Verifier
    users: Users | None
    start: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Begun = tuple[dict[str, Any], list[dict[str, Any]]]
"""The start of the change stream, and the ranges."""


async def check_deployments(*ends: End) -> None:
    """Refuse deployments without an oplog.

    Raises:
        RefusedError: one is a mongod without a replica set.
    """
    hellos = [await repeated(lambda end=end: end.command("admin", {"hello": 1})) for end in ends]  # type: ignore[misc]
    refusals = [
        f"the {end.name} is not a member of a replica set: restart it with --replSet and run rs.initiate()"
        for end, hello in zip(ends, hellos, strict=True)
        if "setName" not in hello and hello.get("msg") != "isdbgrid"
    ]
    if refusals:
        raise RefusedError(refusals)


async def prepared(
    replication: Replication, options: Options, source: End, target: End, store: Store, *, is_lost: bool
) -> Parts:
    """Plan the replication if it is new, or find its position to resume.

    Args:
        is_lost: whether the source no longer has the changes since the stored position.

    Raises:
        RefusedError: something cannot be carried.
    """
    # A router may know an older time, from which the stream would repeat the past of documents that are gone.
    await source.advance()
    now = await repeated(source.now)
    ours = await repeated(lambda: source.deployment(replication.filter))
    listed = await source.advance()
    theirs = await repeated(lambda: target.deployment(replication.filter))
    position = await repeated(store.position)
    writer = Writer(source, target, store)
    catalog = Catalog(replication, source, target, store, writer, [ours, theirs])
    catalog.listed = listed
    notes: tuple[str, ...] = ()
    accounts = position.get("accounts", {})
    users = Users(source, target, replication.filter, accounts, store) if options.users else None
    if not position.get("planned"):
        plan, counts = await _plan(replication, options, source, target, ours, theirs)
        notes = plan.notes
        if users is not None:
            await users.compared()
            names = sorted({*users.kept["users"], *users.kept["roles"]})
            notes += tuple(f"the user or role {each} of the target stays as it is" for each in names)
        start, ranges = await _begin(source, store, writer, catalog, plan, ours, theirs, counts, now, position)
    else:
        writer.merged |= set(position.get("merged", ()))
        start, ranges = await _resume(source, store, catalog, ours, position, now, is_lost=is_lost)
    await catalog.stop_expiry()
    writer.note_read(now)
    copier = Copier(source, target, store, writer, ranges, workers=options.workers, limits=options.limits)
    follower = Follower(
        source, store, writer, catalog, copier, replication.filter, is_sharded=ours.is_sharded, limits=options.limits
    )
    verifier = Verifier(source, target, store, writer, catalog, follower)
    return Parts(store, writer, catalog, copier, follower, verifier, users, start, notes)


async def _plan(
    replication: Replication, options: Options, source: End, target: End, ours: Deployment, theirs: Deployment
) -> tuple[Plan, Mapping[str, int]]:
    """Compare both ends; nothing is written unless everything can be."""
    present = [each for each in theirs.collections if each in ours.collections]
    found_there = await at_once(partial(_has_documents, target, each) for each in present)
    counts = dict(zip(present, found_there, strict=True))
    plan = planned(replication, ours, theirs, merges=options.merges, counts=counts, carries_users=options.users)
    refusals = [*plan.refusals]
    for each in plan.collections:
        found = ours.collections[each.namespace]
        if may_repeat_ids(found, each) and (repeated_id := await _repeated_id(source, each.namespace)) is not None:
            refusals.append(
                f"{each.namespace} has several documents with the _id {shown(repeated_id)} on different shards: "
                f"they can be carried only if it has the same shard key at the target"
            )
    if refusals:
        raise RefusedError(refusals)
    return plan, counts


async def _begin(
    source: End,
    store: Store,
    writer: Writer,
    catalog: Catalog,
    plan: Plan,
    ours: Deployment,
    theirs: Deployment,
    counts: Mapping[str, int],
    now: Timestamp,
    position: Mapping[str, Any],
) -> Begun:
    """Create the collections, and record the plan.

    Args:
        position: of an interrupted process that has created some of them, or empty.
    """
    names = {each.namespace for each in plan.collections}
    created = {*position.get("created", ())}
    present = (names & theirs.collections.keys()) - created
    writer.merged |= present
    # Otherwise a process that continues would mistake the collections that this one creates for the target's own.
    await store.fenced(SYNC, {"_id": store.id}, {"created": sorted(created | (names - present))})
    for each in plan.collections:
        catalog.know(ours.collections[each.namespace])
    await catalog.create_all(plan.collections)
    for each in plan.collections:
        if each.namespace not in present:
            await catalog.presplit(each)  # one at a time: a shard refuses a second move
    listed = [ours.collections[each.namespace] for each in plan.collections]
    ranges = await _ranges(source, listed, compared={each for each, count in counts.items() if count})
    await store.replace_ranges(ranges)
    fields = {"planned": True, "start": now, **catalog.stored(), "source_identity": ours.identity, "created": []}
    await store.fenced(SYNC, {"_id": store.id}, fields)
    await store.record(now, copied=False, counters=writer.counters)
    return {"start_at_operation_time": now}, await store.ranges()


async def _resume(
    source: End,
    store: Store,
    catalog: Catalog,
    ours: Deployment,
    position: Mapping[str, Any],
    now: Timestamp,
    *,
    is_lost: bool,
) -> Begun:
    """Continue from the point where both ends agree."""
    agreed = await repeated(store.agreement)
    catalog.restore(position["collections"])
    # Without a checkpoint at the source, the source's identity is compared instead.
    is_same = position.get("source_identity", ours.identity) == ours.identity
    is_known = is_same and not is_lost and (agreed.is_exact or "history" not in position)
    _log.info(
        "A replication is resumed",
        how="the oplog was lost" if is_lost else agreed.reason if is_same else "it is another source",
    )
    if is_known:
        catalog.listed = position.get("listed", NO_TIME)
        token = position.get("token")
        start: dict[str, Any] = (
            {"start_at_operation_time": position["start"]} if token is None else {"resume_after": decode(token)}
        )
        return start, await store.ranges()
    # Everything is compared with the target, and only differences are written.
    found = await catalog.plan_again()
    await store.replace_ranges(await _ranges(source, found, compared={each.namespace for each in found}))
    began = now if is_lost or not is_same or agreed.last is None else agreed.last
    fields = {"start": began, "token": None, **catalog.stored(), "source_identity": ours.identity}
    await store.fenced(SYNC, {"_id": store.id}, fields)
    return {"start_at_operation_time": began}, await store.ranges()


async def _ranges(source: End, collections: Sequence[Collection], compared: Container[str]) -> list[dict[str, Any]]:
    """Plan the ranges of collections of the source, and compare the ones of ``compared`` with the target."""

    async def ranges(each: Collection) -> list[dict[str, Any]]:
        is_compared = each.namespace in compared
        return await repeated(lambda: planned_ranges(source, each.namespace, each.uuid, compares=is_compared))

    found = await at_once(partial(ranges, each) for each in collections if each.kind == "collection")
    return list(chain.from_iterable(found))


async def _repeated_id(source: End, namespace: str) -> Value | None:
    """Return the first ``_id`` of a sharded collection that several documents have; None if there is none."""

    async def first() -> Value | None:
        last: Value | None = None
        async for each in source.collection(namespace).find({}, {"_id": 1}).sort("_id", 1):
            found = id_of(bytes(each.raw))
            if found == last and await is_repeated(found):
                return found
            last = found
        return None

    async def is_repeated(key: Value) -> bool:
        # The other read sees a document twice if its shard key changes during the read.
        at_once = source.collection(namespace).with_options(read_concern=ReadConcern("snapshot"))
        return len(await at_once.find(ids_filter([key]), {"_id": 1}).to_list()) > 1

    return await repeated(first)


async def _has_documents(target: End, namespace: str) -> int:
    found = await repeated(lambda: target.collection(namespace).find_one({}, {"_id": 1}))
    return 0 if found is None else 1
