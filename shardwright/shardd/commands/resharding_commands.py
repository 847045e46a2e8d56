"""Commands of resharding: from the coordinator to donors and recipients, and from recipients to donors.

NoSuchReshardCollection means that the operation has ended. NotYetInitialized means that the source is not open (any
more), and the recipient has to open it.
"""

from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.shardd.commands.command import RawReply, ShardComponents
from shardwright.shardd.ddl.participants import drop_here
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.metadata.critical_sections import closed
from shardwright.shardd.resharding.donor import DonorSource
from shardwright.sharding.namespace import full_namespace, own_collection
from shardwright.sharding.resharding_participation import Participation, RecipientState
from shardwright.wire import rawbson
from shardwright.wire.arguments import Arguments
from shardwright.wire.request import Request

_WAIT_MILLIS_DEFAULT: Final = 1_000


async def resharding_donate(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Take part in an operation as a donor; with ``blockWrites``, block writes until the decision.

    Raises NoSuchReshardCollection or CollectionUUIDMismatch.
    """
    participation = _participation(request)
    donor = await shard.resharding.donate(participation)
    if Arguments.of(request).boolean(b"blockWrites"):
        return {"lastWriteTime": await shard.resharding.block_writes(participation)}
    return await donor.describe()


async def resharding_receive(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Take part in an operation as a recipient, and wait a limited time for a state.

    Raises NoSuchReshardCollection, or the error that ended this recipient's work.
    """
    arguments = Arguments.of(request)
    recipient = await shard.resharding.receive(_participation(request))
    recipient.bytes_to_copy = arguments.maybe_integer(b"approxBytesToCopy") or recipient.bytes_to_copy
    recipient.documents_to_copy = arguments.maybe_integer(b"approxDocumentsToCopy") or recipient.documents_to_copy
    wanted = RecipientState(arguments.string(b"awaitState"))
    seconds_max = (arguments.maybe_integer(b"waitMillis") or _WAIT_MILLIS_DEFAULT) / 1000
    last_writes = arguments.value(b"lastWrites") if arguments.has(b"lastWrites") else None
    if last_writes is not None:
        with trio.move_on_after(seconds_max):
            await recipient.reach_strict_consistency({each["shardId"]: each["time"] for each in last_writes})
    is_reached = await recipient.wait_state(wanted, seconds_max if last_writes is None else 0)
    return {"isReached": is_reached, **recipient.progress()}


async def resharding_operation_time(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report a recipient's elapsed and remaining time, or its error; nothing if this shard is not a recipient."""
    recipient = shard.resharding.recipient_of(str(full_namespace(request)))
    if recipient is None:
        return {}
    recipient.check()
    progress = recipient.progress()
    times = {name: progress[name] for name in ("elapsedMillis", "remainingMillis")}
    return {name: Int64(value) for name, value in times.items() if value is not None}


async def resharding_hold(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Block reads and writes until the decision, or raise NoSuchReshardCollection if this shard does not take part."""
    await shard.resharding.hold(_participation(request))
    return {}


async def commit_reshard_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Replace the former collection with the assembled one."""
    await shard.resharding.commit(_participation(request, b"operation"))
    return {}


async def abort_reshard_collection(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Remove all state of an aborted operation."""
    is_canceled = Arguments.of(request).boolean(b"userCanceled")
    await shard.resharding.abort(_participation(request, b"operation"), is_canceled=is_canceled)
    return {}


async def drop_collection_if_uuid_not_matching(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Drop the local collection unless it has the expected UUID, or raise LockBusy if a running write did not end."""
    namespace, expected = own_collection(request), Arguments.of(request).uuid(b"expectedCollectionUUID")
    local = await describe(shard.context.mongod, namespace)
    if local is not None and local.uuid != expected:
        state = shard.context.namespace(str(namespace))
        async with closed(state, {"command": request.name, "ns": str(namespace)}):
            await drop_here(shard.context, namespace)
    return {}


async def resharding_open_source(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Open a source for a recipient to pull from; it follows changes after the time ``position`` in the reply.

    Raises NotYetInitialized if this shard is not a donor, or CappedPositionLost if its oplog is too short.
    """
    arguments = Arguments.of(request)
    donor = shard.resharding.donor(arguments.uuid(b"reshardingUUID"))
    position = arguments.timestamp(b"position") if arguments.has(b"position") else None
    from_key = arguments.maybe_raw(b"fromKey")
    recipient, session_id = arguments.string(b"recipient"), arguments.string(b"sessionId")
    return {"position": await donor.open_source(recipient, session_id, position, from_key)}


async def resharding_clone(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of documents as ``objects``, and ``upTo``, the last cloned shard key; without ``upTo`` at the end.

    Raises NotYetInitialized; see `DonorSource.next_clone_batch`.
    """
    documents, key = await _source(shard, request).next_clone_batch(_number(request))
    rest = b"" if key is None else b"\x03upTo\0" + key
    return RawReply((b"\x04objects\0", rawbson.array_of_documents(documents), rest))


async def resharding_mods(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of changes: ``deleted``, to be applied first, and ``reload``; see `migration_commands`.

    Raises NotYetInitialized; see `DonorSource.next_mods`.
    """
    arguments = Arguments.of(request)
    since = arguments.timestamp(b"since") if arguments.has(b"since") else None
    source = _source(shard, request)
    deleted, reload, size, position = await source.next_mods(_number(request), since)
    rest = {"size": Int64(size), "position": position, "queued": Int64(source.queued)}
    return RawReply(
        (
            *(b"\x04deleted\0", rawbson.array_of_documents(deleted)),
            *(b"\x04reload\0", rawbson.array_of_documents(reload)),
            rawbson.encode_elements(rest),
        )
    )


async def resharding_session_history(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of executed retryable writes as ``oplog``; empty if there are no more at the moment.

    Raises NotYetInitialized; see `DonorHistory.next_batch`.
    """
    statements = await _source(shard, request).history.next_batch(_number(request))
    return RawReply((b"\x04oplog\0", rawbson.array_of_documents(statements)))


def _participation(request: Request, field: bytes | None = None) -> Participation:
    return Participation.from_document(request.get(field or request.name.encode()))


def _source(shard: ShardComponents, request: Request) -> DonorSource:
    arguments = Arguments.of(request)
    donor = shard.resharding.donor(arguments.uuid(b"reshardingUUID"))
    return donor.source(arguments.string(b"recipient"), arguments.string(b"sessionId"))


def _number(request: Request) -> int:
    return Arguments.of(request).maybe_integer(b"number") or 0
