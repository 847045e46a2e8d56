"""Balancer commands: its switch, reports on its rounds, and the settings and zones of one collection.

``_configsvrBalancerStart``, ``…Stop`` and ``…Status`` use the document ``balancer`` of ``config.settings``. MongoDB 6.0
switches ``autosplit`` along with it. ``_configsvrBalancerCollectionStatus`` reports whether a collection complies with
the policy. ``_configsvrBalancerExplain`` is a dry run: the decisions of a round and the next ones of a defragmentation,
with their reasons. ``_configsvrConfigureCollectionBalancing`` changes one collection.

Others change the zones of shards, and the zone ranges of collections.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.configd.balancer.balancer import answers_for, in_turn
from shardwright.configd.balancer.cluster_view import ClusterView, Configuration, chunk_bytes_max, read_view
from shardwright.configd.balancer.commands_scheduler import refresh_shards
from shardwright.configd.balancer.defragmentation_state import (
    DEFRAGMENTATION_FIELDS,
    Situation,
    chunks_in_order,
    decide_about_small,
    defragmentation_details,
    neighbours_of,
    next_small_chunk,
    read_situation,
)
from shardwright.configd.catalog.chunks import (
    CollectionChunks,
    ZoneBounds,
    find_collection,
    finish_renames,
    refine_zones,
)
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.operation import Operation
from shardwright.configd.term.term import Term
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.sharding.balancing.cluster_state import CollectionState, Measure, Merge, Move, Rule, Skipped
from shardwright.sharding.balancing.defragmentation import (
    UNKNOWN_SHARD,
    WAITS_FOR_NEIGHBOUR,
    MeasuredChunk,
    merge_of,
    move_of,
    runs,
    stays,
    steps_of_run,
)
from shardwright.sharding.balancing.policy import choose_moves, choose_splits, first_violation
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.documents import CollectionEntry, TagEntry
from shardwright.sharding.catalog.settings import (
    AUTO_SPLIT_ID,
    BALANCER_ID,
    CHUNK_SIZE_MB_MAX,
    CHUNK_SIZE_MB_MIN,
    BalancerSettings,
)
from shardwright.sharding.chunk_changes import bump_minor
from shardwright.sharding.key_order import encode_key
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, is_string, raw_document

logger = get_logger("configd.balancer")

_STEPS_MAX: Final = 100
"""Maximum number of decisions in the explanation of a collection; a final entry says that more exist."""

_PHASES: Final = {each.value: each for each in (Rule.MERGE_AND_MEASURE, Rule.MOVE_AND_MERGE, Rule.MERGE)}

_Step: TypeAlias = Move | Merge | Measure | Skipped


async def balancer_start(operation: Operation) -> dict[str, Any]:
    """Turn the balancer on; a round begins at once if the settings permit it."""
    await _switch(operation, mode="full", action="balancer.start")
    operation.term.balancer_rounds.want_next()
    return {}


async def balancer_stop(operation: Operation) -> dict[str, Any]:
    """Turn the balancer off, and return after the present round.

    After MaxTimeMSExpired the balancer is off too, but the round continues.
    """
    await _switch(operation, mode="off", action="balancer.stop")
    await operation.term.balancer_rounds.wait_over()
    return {}


async def balancer_status(operation: Operation) -> dict[str, Any]:
    """Report the state of the switch, and of the rounds of this term.

    If the settings are invalid, the mode is the last valid one, as in MongoDB.
    """
    document = await operation.term.catalog.find_by_id("settings", BALANCER_ID)
    rounds = operation.term.balancer_rounds
    try:
        mode = BalancerSettings.from_document(document).mode
    except CommandError:
        mode = rounds.mode
    return {
        "mode": mode,
        "inBalancerRound": rounds.is_balancing,
        "numBalancerRounds": rounds.number,
        "term": operation.term.number,
    }


async def _switch(operation: Operation, *, mode: str, action: str) -> None:
    is_on = mode != "off"

    async def work(transaction: Transaction) -> None:
        for key, settings in ((BALANCER_ID, {"mode": mode, "stopped": not is_on}), (AUTO_SPLIT_ID, {"enabled": is_on})):
            document = await transaction.find_one("settings", {"_id": key})
            transaction.put("settings", [{**(document or {"_id": key}), **settings}])

    async with operation.committing():
        await operation.term.catalog.transaction(work)
        await operation.term.changelog.log_action(action, {}, client_address=operation.client_address)


async def balancer_collection_status(operation: Operation) -> dict[str, Any]:
    """Report whether a collection complies with the balancer's policy, or the first rule that it violates."""
    return await _collection_status(operation.term, str(operation.namespace))


async def balancer_explain(operation: Operation) -> dict[str, Any]:
    """Report the decisions of a round for one collection or all, without executing them."""
    is_about_all = not is_string(operation.request.get(operation.name.encode()))
    return await _explain(operation.term, None if is_about_all else str(operation.namespace))


_OPTIONS: Final = (b"chunkSize", b"defragmentCollection", b"enableAutoSplitter")


async def configure_collection_balancing(operation: Operation) -> dict[str, Any]:
    """Set a collection's chunk size, auto-splitting and defragmentation.

    The chunk size is in MB, and 0 stands for the cluster's. A defragmentation ends by itself or when it is turned off.
    The shards that own chunks refresh, so that auto-splitting uses the new settings. An unreachable shard gets them
    with its next refresh.

    Raises:
        CommandError: InvalidOptions, no option or a chunk size out of range; NamespaceNotSharded.
    """
    namespace = str(operation.namespace)
    changes = _changes(operation)

    async def work(transaction: Transaction) -> list[str]:
        document = await transaction.find_one("collections", {"_id": namespace})
        if document is None:
            query = document_text(encode_document({"_id": namespace}))
            raise CommandError(
                ErrorCode.NamespaceNotSharded, f"Expected to match one doc for query {query} but matched 0"
            )
        kept = {name: value for name, value in document.items() if name not in changes}
        transaction.put("collections", [{**kept, **{name: new for name, new in changes.items() if new is not None}}])
        chunks = CollectionChunks(transaction, CollectionEntry.from_document(document))
        chunks.write(bump_minor(await chunks.newest()))
        return await chunks.owners()

    async with operation.term.locks.hold(f"ns:{namespace}"):
        owners = await operation.term.catalog.transaction(work)
    operation.term.balancer_rounds.want_next()
    try:
        await refresh_shards(operation.term, namespace, owners)
    except CommandError as error:
        logger.warning("A shard does not know the settings of a collection yet", namespace=namespace, error=str(error))
    return {}


def _changes(operation: Operation) -> dict[str, Any]:
    """Return the fields of the collection's entry to set; None removes a field."""
    arguments = operation.arguments
    if not any(arguments.has(option) for option in _OPTIONS):
        raise CommandError(ErrorCode.InvalidOptions, "invalid configure collection balancing update")
    changes: dict[str, Any] = {}
    size = arguments.maybe_number(b"chunkSize")
    if size is not None:
        if size and not CHUNK_SIZE_MB_MIN <= size <= CHUNK_SIZE_MB_MAX:
            raise CommandError(ErrorCode.InvalidOptions, f"Chunk size '{size:.0f}' out of range [1MB, 1GB]")
        changes["maxChunkSizeBytes"] = Int64(int(size) << 20) if size else None
    if arguments.has(b"enableAutoSplitter"):
        changes["noAutoSplit"] = not arguments.boolean(b"enableAutoSplitter")
    if arguments.has(b"defragmentCollection"):
        is_wanted = arguments.boolean(b"defragmentCollection")
        changes |= {"defragmentCollection": True} if is_wanted else dict.fromkeys(DEFRAGMENTATION_FIELDS)
    return changes


async def add_shard_to_zone(operation: Operation) -> dict[str, Any]:
    """Add the shard to the zone, which is created with its first shard; raises ShardNotFound."""
    shard, zone = operation.subject, operation.arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("shards", {"_id": shard})
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"shard {shard} does not exist")
        zones = document.get("tags", [])
        if zone not in zones:
            transaction.put("shards", [{**document, "tags": [*zones, zone]}])

    async with operation.term.locks.hold("zones"):
        await operation.term.catalog.transaction(work)
    return {}


async def remove_shard_from_zone(operation: Operation) -> dict[str, Any]:
    """Remove the shard from the zone.

    Raises:
        CommandError: ShardNotFound; ZoneStillInUse, it is the last shard of a zone that has ranges.
    """
    shard, zone = operation.subject, operation.arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("shards", {"_id": shard})
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"shard {shard} does not exist")
        if zone not in document.get("tags", ()):
            return
        is_last = await transaction.find_one("shards", {"tags": zone, "_id": {"$ne": shard}}) is None
        if is_last and await transaction.find_one("tags", {"tag": zone}) is not None:
            raise CommandError(
                ErrorCode.ZoneStillInUse, "cannot remove a shard from zone if a chunk range is associated with it"
            )
        zones = [other for other in document["tags"] if other != zone]
        transaction.put("shards", [{**document, "tags": zones}])

    async with operation.term.locks.hold("zones"):
        await operation.term.catalog.transaction(work)
    return {}


async def update_zone_key_range(operation: Operation) -> dict[str, Any]:
    """Assign the range to a zone, or remove it with ``zone: null``. The collection may still be unsharded.

    Raises:
        CommandError: ZoneNotFound; RangeOverlapConflict; ShardKeyNotFound and FailedToParse, the bounds are not a range
            of the shard key; InvalidOptions, they have no hash in its hashed field.
    """
    namespace = operation.namespace
    arguments = operation.arguments
    bounds = ZoneBounds.parse(arguments.raw(b"min"), arguments.raw(b"max"))
    zone = None if arguments.is_null(b"zone") else arguments.string(b"zone")

    async def work(transaction: Transaction) -> None:
        collection = await find_collection(transaction, str(namespace))
        full = bounds if collection is None else bounds.extended_to(collection.key, namespace)
        low, high = rawbson.raw_document(full.min), rawbson.raw_document(full.max)
        if zone is None:
            await transaction.delete_matching("tags", {"ns": str(namespace), "min": low, "max": high})
            return
        if await transaction.find_one("shards", {"tags": zone}) is None:
            raise CommandError(ErrorCode.ZoneNotFound, f"zone {zone} does not exist")
        if collection is not None:
            full.check_hashes(collection.key)
        others = [
            TagEntry.from_document(document)
            for document in await transaction.find("tags", {"ns": str(namespace)}, sort={"min": 1})
        ]
        full.check_against(others, zone)
        start = encode_key(full.min)
        existing = next((other for other in others if encode_key(rawbson.encode_document(other.min)) == start), None)
        entry = TagEntry(existing.id if existing else ObjectId(), namespace, low, high, zone)
        transaction.put("tags", [entry.to_document()])

    catalog = operation.term.catalog
    async with operation.committing(f"ns:{namespace}", "zones"):
        await finish_renames(catalog, str(namespace))
        if (document := await catalog.find_by_id("collections", str(namespace))) is not None:
            await refine_zones(catalog, CollectionEntry.from_document(document))
        await catalog.transaction(work)
    return {}


_NOT_RETRYABLE: Final = 5748800
"""MongoDB's code for a command that must be sent as a retryable write but was not."""


async def remove_tags(operation: Operation) -> dict[str, Any]:
    """Remove all zone ranges of the collection.

    The command is executed once, so that a late one does not remove ranges that have been added since.

    Raises:
        CommandError: 5748800, there is no session or transaction number; TransactionTooOld, the command comes late.
    """
    namespace = str(operation.namespace)
    session = CommandSession.of(operation.request)
    if session is None:
        raise CommandError(_NOT_RETRYABLE, f"{operation.name} must be run as a retryable write")

    catalog = operation.term.catalog
    async with operation.committing("zones"):
        await execute_once(catalog.mongod, session, partial(catalog.delete, "tags", {"ns": namespace}))
    return {}


async def _next_steps(term: Term, entry: CollectionEntry, configuration: Configuration) -> list[_Step]:
    """Return the decisions of the phase for the present chunks, and the chunks that it skips.

    Errors as `Catalog.find`.
    """
    rule = _PHASES.get(entry.defragmentation_phase or "", Rule.MERGE_AND_MEASURE)
    if not entry.may_migrate:
        return [Skipped(entry.namespace, "migrations of the collection are not permitted", rule)]
    try:
        situation = await read_situation(term, entry, configuration)
    except CommandError as error:
        return [Skipped(entry.namespace, f"its zones do not fit its shard key: {error}", rule)]
    steps: list[_Step] = []
    found = _small_chunks(term, situation) if rule is Rule.MOVE_AND_MERGE else _runs(term, situation, rule)
    async for each in found:
        if len(steps) >= _STEPS_MAX:
            steps.append(
                Skipped(entry.namespace, f"only the first {_STEPS_MAX} decisions of the phase are shown", rule)
            )
            break
        steps.append(each)
    return steps


async def _runs(term: Term, situation: Situation, rule: Rule) -> AsyncIterator[_Step]:
    rest: list[MeasuredChunk] = []
    async for page in chunks_in_order(term.catalog, situation.entry):
        *complete, rest = runs([*rest, *page], situation.zones)
        for run in complete:
            for each in _steps(situation, run, rule):
                yield each
    for each in _steps(situation, rest, rule) if rest else ():
        yield each


def _steps(situation: Situation, run: list[MeasuredChunk], rule: Rule) -> list[_Step]:
    namespace, zones = situation.entry.namespace, situation.zones
    steps = [each for each in steps_of_run(namespace, run, zones, situation.threshold, rule) if each is not None]
    if steps and run[0].shard not in situation.shards:
        return [stays(namespace, run[0], zones, rule, UNKNOWN_SHARD)]
    return [*steps]


async def _small_chunks(term: Term, situation: Situation) -> AsyncIterator[_Step]:
    """Yield the decisions about all small chunks that do not depend on the result of an earlier one."""
    entry, zones, threshold = situation.entry, situation.zones, situation.threshold
    above: bytes | None = None
    changed_up_to = b""
    while chunk := await next_small_chunk(term.catalog, entry, threshold, above):
        above = chunk.range.min
        neighbours = await neighbours_of(term.catalog, entry, chunk)
        if any(each.range.min_key < changed_up_to for each in (*neighbours, chunk)):
            yield stays(entry.namespace, chunk, zones, Rule.MOVE_AND_MERGE, WAITS_FOR_NEIGHBOUR)
            continue
        decided = decide_about_small(situation, chunk, neighbours)
        if isinstance(decided, Skipped):
            yield decided
            continue
        if decided.is_move:
            yield move_of(entry.namespace, decided, zones, threshold)
        yield merge_of(entry.namespace, decided.parts, decided.recipient, zones, threshold, Rule.MOVE_AND_MERGE)
        changed_up_to = decided.parts[-1].range.max_key


async def _explain(term: Term, only: str | None = None) -> dict[str, Any]:
    """Return the decisions that a round would make now, with their reasons, without executing them.

    The round's collections come first, then collections in defragmentation with the decisions of their present phase.
    ``only`` restricts this to one namespace.
    """
    configuration = await Configuration().reread(term.catalog)
    view = await read_view(term, configuration, only)
    answers = answers_for(term, view)
    splits = (await answers.drive(choose_splits(view.collections))).splits
    unsplit = {str(split.namespace): "it will be split at the bounds of its zones first" for split in splits}
    decisions = await answers.drive(choose_moves(view.cluster, in_turn(view, unsplit)))
    fragmented = [entry for entry in view.entries.values() if entry.is_defragmented]
    steps = [step for entry in fragmented for step in await _next_steps(term, entry, configuration)]
    details = {str(entry.namespace): await _defragmentation(term, entry, configuration) for entry in fragmented}
    decided = [*splits, *decisions.moves, *(each for each in steps if not isinstance(each, Skipped))]
    skipped = [*decisions.skipped, *(each for each in steps if isinstance(each, Skipped))]
    return {
        "enabled": configuration.is_valid and configuration.balancer.may_balance(datetime.now()),
        "mode": configuration.balancer.mode,
        "balancerPolicy": view.cluster.policy.value,
        "shards": [_shard(view, shard.id) for shard in view.cluster.shards],
        "collections": [{**_collection(each), **details.get(str(each.namespace), {})} for each in view.collections],
        "decisions": [each.to_document() for each in decided],
        "skipped": [each.to_document() for each in skipped],
        "heldBack": [
            {"ns": namespace, "min": raw_document(bound), "error": error}
            for namespace, entry in view.entries.items()
            for bound, error in term.move_backoff.errors(entry.uuid).items()
        ],
    }


def _shard(view: ClusterView, shard_id: str) -> dict[str, Any]:
    entry = view.shards[shard_id]
    document: dict[str, Any] = {"shard": shard_id, "draining": entry.is_draining, "zones": list(entry.tags)}
    if shard_id in view.silent:
        document["notAvailable"] = view.silent[shard_id]
    return document


def _collection(state: CollectionState) -> dict[str, Any]:
    return {
        "ns": str(state.namespace),
        "chunkSizeBytes": Int64(state.chunk_bytes_max),
        "bytes": {shard: Int64(size) for shard, size in sorted(state.sizes.items())},
    }


async def _defragmentation(term: Term, entry: CollectionEntry, configuration: Configuration) -> dict[str, Any]:
    size = chunk_bytes_max(entry, configuration)
    return {"defragmentation": await defragmentation_details(term, entry, size)}


async def _collection_status(term: Term, namespace: str) -> dict[str, Any]:
    """Build the reply to ``balancerCollectionStatus``; the chunk size is in MB. Raises NamespaceNotSharded."""
    configuration = await Configuration().reread(term.catalog)
    view = await read_view(term, configuration, namespace)
    if namespace not in view.entries:
        raise CommandError(ErrorCode.NamespaceNotSharded, "Collection unsharded or undefined")
    entry = view.entries[namespace]
    if entry.is_defragmented:
        details = await defragmentation_details(term, entry, chunk_bytes_max(entry, configuration))
        return _reply(entry, configuration, "defragmentingChunks", details)
    violation = await answers_for(term, view).drive(first_violation(view.cluster, view.collections[0]))
    return _reply(entry, configuration, None if violation is None else violation.value)


def _reply(
    entry: CollectionEntry, configuration: Configuration, violation: str | None, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    megabytes = chunk_bytes_max(entry, configuration) / (1 << 20)
    reply: dict[str, Any] = {"chunkSize": round(megabytes, 3), "balancerCompliant": violation is None}
    if violation is not None:
        reply["firstComplianceViolation"] = violation
    if details is not None:
        reply["details"] = details
    return reply
