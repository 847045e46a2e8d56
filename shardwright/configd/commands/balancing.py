"""Balancer commands: its switch, reports on its rounds, and the settings of one collection.

``_configsvrBalancerStart``, ``…Stop`` and ``…Status`` use the document ``balancer`` of ``config.settings``. MongoDB 6.0
switches ``autosplit`` along with it. ``_configsvrBalancerCollectionStatus`` and ``_configsvrBalancerExplain`` report
the balancer's next decisions and their reasons. ``_configsvrConfigureCollectionBalancing`` changes one collection.
"""

from typing import Any, Final

from bson.int64 import Int64

from shardwright.configd.balancer.defragmentation.situation import DEFRAGMENTATION_FIELDS
from shardwright.configd.balancer.reports import collection_status, explain
from shardwright.configd.catalog.chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.operation import Operation
from shardwright.configd.term.donor_requests import refresh_shards
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.settings import (
    AUTO_SPLIT_ID,
    BALANCER_ID,
    CHUNK_SIZE_MB_MAX,
    CHUNK_SIZE_MB_MIN,
    BalancerSettings,
)
from shardwright.sharding.chunk_changes import bump_minor
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, is_string


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

    await operation.term.catalog.transaction(work)
    await operation.term.changelog.log_action(action, {}, client_address=operation.client_address)


async def balancer_collection_status(operation: Operation) -> dict[str, Any]:
    """Report whether a collection complies with the balancer's policy, or the first rule that it violates."""
    return await collection_status(operation.term, str(operation.namespace))


async def balancer_explain(operation: Operation) -> dict[str, Any]:
    """Report the decisions of a round for one collection or all, without executing them."""
    is_about_all = not is_string(operation.request.get(operation.name.encode()))
    return await explain(operation.term, None if is_about_all else str(operation.namespace))


logger = get_logger("configd.balancer")

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
