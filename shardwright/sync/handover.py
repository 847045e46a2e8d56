"""Handover to the target: block user writes, record the data for a reversal, and swap the roles of both ends."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any

from bson import encode
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError, WriteError

from shardwright.sync.changes import DOCUMENT_KINDS, parse, token_time
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.ddl import INDEX_NOT_FOUND
from shardwright.sync.ends import (
    HISTORY_LOST,
    NAMESPACE_NOT_FOUND,
    USER_WRITES_BLOCKED,
    End,
    at_once,
    check_cancellation,
    repeated,
)
from shardwright.sync.following import AWAIT_MS
from shardwright.sync.plan import expiry_stops
from shardwright.sync.preparing import Parts
from shardwright.sync.store import SYNC, LeaseLostError, Store
from shardwright.sync.verification import at
from shardwright.wire.logger import get_logger

_log = get_logger("sync.handover")


class CommitError(Exception):
    """The target cannot take over."""


@dataclass
class Outcome:
    """Results of a commit.

    Attributes:
        pause_seconds: from before writes were blocked until applications may write at the target.
        differs: whether source and target differ, if the process has ended by itself.
    """

    pause_seconds: float = 0.0
    differs: bool = False


async def block_writes(end: End, *, is_blocked: bool) -> None:
    """Block or allow the writes of users."""
    await repeated(lambda: end.command("admin", {"setUserWriteBlockMode": 1, "global": is_blocked}))


async def acquire_blocked(store: Store, target: End) -> None:
    """Acquire the lease at a target whose users' writes a commit may have blocked.

    The block may apply to this process as well, because its user cannot bypass it or access control is off. Then the
    block is lifted.
    """
    try:
        await repeated(store.acquire)
    except (OperationFailure, WriteError) as error:
        if error.code != USER_WRITES_BLOCKED:
            raise
        _log.warning("The new target is opened for writes: this process cannot bypass the block", end=target.name)
        await block_writes(target, is_blocked=False)
        await repeated(store.acquire)


async def reopen(store: Store, source: End) -> None:
    """Lift the block of a commit that has failed or was interrupted."""
    await block_writes(source, is_blocked=False)
    await store.fenced(SYNC, {"_id": store.id}, {"blocked": False})


async def expiring(end: End, namespaces: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the commands that disable TTL expiry in collections, each with its database."""

    async def commands(namespace: str) -> list[tuple[str, dict[str, Any]]]:
        return expiry_stops(namespace, await repeated(lambda: end.indexes(namespace)))

    return list(chain.from_iterable(await at_once(partial(commands, each) for each in sorted({*namespaces}))))


async def stop_expiry(end: End, commands: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Disable TTL expiry at the old source, which does not have the newer states of the documents.

    Args:
        commands: from `expiring`.
    """

    async def run(database: str, command: Mapping[str, Any]) -> None:
        majority = {**command, "writeConcern": {"w": "majority"}}
        try:
            await repeated(lambda: end.command(database, majority))
        except OperationFailure as error:
            # While writes are blocked, nothing expires.
            if error.code not in (NAMESPACE_NOT_FOUND, INDEX_NOT_FOUND, USER_WRITES_BLOCKED):
                raise

    await at_once(partial(run, *each) for each in commands)


async def changed_since(end: End, committed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ranges, in their stored form, of the collections whose documents have changed at the old source.

    Between the end of the block and `stop_expiry`, documents can expire. The comparison of these ranges restores them.

    Args:
        committed: as recorded by `hand_over`.
    """
    since: Timestamp = committed["source"]
    until = await end.advance()
    every: dict[str, str] = committed["collections"]

    async def read() -> set[str]:
        found: set[str] = set()
        pipeline = [{"$match": {"operationType": {"$in": sorted(DOCUMENT_KINDS)}}}]
        stream = await end.client.watch(pipeline, max_await_time_ms=AWAIT_MS, start_at_operation_time=since)
        async with stream:
            while True:
                event: Any = await stream.try_next()
                if event is not None:
                    change = parse(bytes(event.raw))
                    if change.time > since:
                        found.add(change.namespace)
                elif stream.resume_token is not None and token_time(encode(stream.resume_token)) >= until:
                    return found
                check_cancellation()

    try:
        changed = await repeated(read)
    except OperationFailure as error:
        if error.code not in HISTORY_LOST:
            raise
        changed = {*every.values()}
    bounds = dict.fromkeys(("low", "high", "position"))
    counts = dict.fromkeys(("number", "documents", "bytes", "estimated_documents", "estimated_bytes"), 0)
    return [
        {"ns": namespace, "uuid": bytes.fromhex(uuid), "compares": True, "done": False, **bounds, **counts}
        for uuid, namespace in every.items()
        if namespace in changed
    ]


async def hand_over(parts: Parts, source: End, target: End, *, blocks_writes: bool) -> float:
    """Block writes at the source, apply and compare the rest, and record the commit.

    After an error, the source is no longer blocked, unless it is away; see also `_reopen_after`. If this process ends
    before that, the next one lifts the block.

    Args:
        parts: of the replication, which has caught up.
        blocks_writes: whether to block the writes of users; otherwise the caller guarantees that there are none.

    Returns:
        The seconds in which applications could write at neither end.

    Raises:
        CommitError: both ends differ.
        PyMongoError: an end has failed.
    """
    store = parts.store
    has_turned = (await repeated(store.position)).get("turned", False)
    if blocks_writes:
        await store.fenced(SYNC, {"_id": store.id}, {"blocked": True})
    began = monotonic()
    may_be_recorded = False
    try:
        if blocks_writes:
            await block_writes(source, is_blocked=True)
        times = await _drain(parts, source, target)
        committed = {"source": times[0], "target": times[1], "collections": await parts.catalog.stored_of_target()}
        await parts.catalog.let_expire()
        may_be_recorded = True
        await store.fenced(SYNC, {"_id": store.id}, {"committed": committed, "blocked": False})
    except BaseException as error:
        if blocks_writes:
            await _reopen_after(store, source, may_be_recorded=may_be_recorded)
        if isinstance(error, NoMomentError):
            raise CommitError(str(error)) from error
        raise
    if has_turned and blocks_writes:
        await block_writes(target, is_blocked=False)
    return monotonic() - began


async def _reopen_after(store: Store, source: End, *, may_be_recorded: bool) -> None:
    """Lift the block after an error of a commit.

    The block stays if the commit was recorded all the same. It also stays if another process has taken over: that
    process has lifted it, or has blocked writes for a commit of its own.

    Args:
        may_be_recorded: whether to assume that the commit was recorded if the target is away.
    """
    try:
        position = await store.position()
        stays = bool(position.get("committed")) or position["term"] != store.term
    except PyMongoError:
        stays = may_be_recorded
    if stays:
        _log.warning("The source stays blocked: the commit may be recorded, or another process has taken over")
        return
    try:
        await reopen(store, source)
    except (PyMongoError, LeaseLostError) as error:
        _log.warning("The source may stay blocked until the replication runs again", error=str(error))


async def _drain(parts: Parts, source: End, target: End) -> tuple[Timestamp, Timestamp]:
    """Apply and compare the rest; return the times of source and target after it."""
    if parts.follower.is_sharded:
        # Several shards may still be committing a transaction when writes are blocked. Wait for it first: otherwise the
        # source would have the whole of it at a time at which the target has only a part.
        await parts.follower.wait_applied(await source.advance())
    applied = await source.advance()
    await parts.follower.wait_applied(applied)
    await parts.copier.wait_done()
    await parts.catalog.wait_built()
    times = applied, await repeated(target.now)
    report = await parts.verifier.recheck(at(*times))
    if not parts.verifier.is_covered:
        raise CommitError("too many documents were written since the last comparison: commit again")
    if not report.is_equal:
        raise CommitError("source and target differ: see the verification")
    return times


async def turn_around(
    ended: Store, begun: Store, committed: dict[str, Any], identity: str, ranges: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Start the opposite direction at the commit, without a copy.

    The opposite direction is complete before the ended one is marked, so that this can be repeated after an
    interruption.

    Args:
        ended: the committed direction; its lease is held.
        begun: the opposite direction; its lease is held.
        committed: as recorded by `hand_over`.
        ranges: from `changed_since`.
    """
    await begun.replace_ranges(ranges)
    fields = {
        "planned": True,
        "start": committed["target"],
        "token": None,
        "applied": committed["target"],
        "collections": committed["collections"],
        "listed": committed["target"],
        "merged": [],
        "committed": None,
        "handed_over": False,
        "turned": True,
        "source_identity": identity,
        "accounts": (await repeated(ended.position)).get("accounts", {}),
    }
    await begun.fenced(SYNC, {"_id": begun.id}, fields)
    await repeated(begun.agreement)
    await begun.record(committed["target"], copied=True, counters={}, is_new=True)
    await ended.fenced(SYNC, {"_id": ended.id}, {"handed_over": True})
    await ended.release()
