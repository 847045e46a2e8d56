"""Opening a change stream, on a collection, a database or the whole cluster."""

from collections.abc import Collection

from shardwright.router.change_streams.changelog import CatalogOwner, ShardingEvents, UnshardedTimes
from shardwright.router.change_streams.commands import Commands
from shardwright.router.change_streams.errors import labelled, token_not_found
from shardwright.router.change_streams.event_documents import Images, KeyCompletion, PreImages
from shardwright.router.change_streams.orphan_deletions import OrphanDeletions
from shardwright.router.change_streams.shard_streams import LSID, ShardCommand, ShardStreams
from shardwright.router.change_streams.specification import ClientStages, Specification
from shardwright.router.change_streams.stream_stage import ChangeStreamStage, EventView
from shardwright.router.change_streams.tokens import ResumeToken, after
from shardwright.router.operations.cursor_opening import OpenedRead, answer_cursor, kill_opened, open_on_shards
from shardwright.router.operations.operation import Operation
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply, raise_worst
from shardwright.sharding.cluster_time import ACKNOWLEDGED_TIME, ACKNOWLEDGED_TIME_ELEMENT, unpack_timestamp
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, encode_document, encode_elements, without
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.request import raw_elements
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_OF_NO_COLLECTION = ".$cmd.aggregate"
_VARIABLES = (b"let", b"collation")
_PASSED_ON = (b"comment", b"$readPreference")
_PRIMARY_IF_THERE_IS_ONE = ReadPreference("primaryPreferred")
_PING = encode_document({"ping": 1, "$db": "admin"})


@may_run_in_reactor
async def open_change_stream(operation: Operation, pipeline: Pipeline, namespace: str) -> Reply:
    """Execute an ``aggregate`` whose first stage is ``$changeStream``; return the reply.

    Raises:
        CommandError: a shard or the config servers failed or refused; labelled if the driver may resume.
    """
    with labelled():
        specification = Specification.parse(pipeline.stages[0])
        if specification is None:
            await in_own_task()
            await _check(operation)
            raise CommandError(ErrorCode.FailedToParse, "the $changeStream stage must be specified as an object")
        size = batch_size(operation.request)
        stages = ClientStages.of(pipeline.stages[1:], needs_images=specification.needs_images)
        as_of = operation.context.clock.time.cluster_time
        times = await _times_of_arrival(operation, specification)  # first, because everything else takes time
        await in_own_task()
        # The client's token is not sent to shards: their streams begin with the event of that token.
        missing = _token_without_event(specification, namespace)
        if not stages.run_on_shards or specification.must_be_found is not None or missing is not None:
            await _check(operation)
        if missing is not None:
            raise token_not_found(missing)
        root = await _open(operation, specification, stages, times, as_of)
        return await answer_cursor(OpenedRead(operation, root, namespace, size))


def _token_without_event(specification: Specification, namespace: str) -> ResumeToken | None:
    """Return the client's token if it ends a collection's stream, because wider streams do not have that event."""
    token = specification.resume_after
    is_wider = namespace.endswith(_OF_NO_COLLECTION)
    return token if token is not None and token.ends_collection and is_wider else None


async def _open(
    operation: Operation,
    specification: Specification,
    stages: ClientStages,
    times: dict[str, ShardReply],
    as_of: int,
) -> ChangeStreamStage:
    """Open the stream on all shards.

    Args:
        times: the result of `_times_of_arrival`.
        as_of: a packed cluster time before ``times``. Shards added later are noticed before later events are returned.
    """
    context, request = operation.context, operation.request
    command = ShardCommand.of(request, specification, stages.for_shards, operation.read_preference)
    shard_ids = await context.shards.reload_as_of(as_of)
    if not shard_ids:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    starts = await _starts(operation, specification, shard_ids, times)
    session = raw_elements(request, (LSID,))
    frames = {shard: command.frame(specification.starting_where(start), session) for shard, start in starts.items()}
    # Each shard receives the cluster times of all others, so its later writes sort after the latest of them.
    replies = await open_on_shards(operation, frames, preference=command.preference)
    streams = ShardStreams(context, command, unpack_timestamp(as_of))
    try:
        for reply in replies:
            streams.adopt(reply)
    except BaseException:
        kill_opened(operation, replies)
        raise
    commands = Commands(context, operation.client, raw_elements(request, _VARIABLES), raw_elements(request, _PASSED_ON))
    pre_images = PreImages(commands)
    unsharded = UnshardedTimes(context.catalog, context.routing)
    images = Images(specification, commands, pre_images, unsharded) if specification.needs_images else None
    sharding = ShardingEvents(context.catalog, context.routing) if specification.shows_expanded_events else None
    keys = KeyCompletion(context.routing, pre_images, unsharded)
    orphans = OrphanDeletions(context.routing, commands)
    view = EventView(images, stages, commands, keys, sharding, orphans)
    owner = CatalogOwner(context.catalog, context.routing)
    first, last = min(starts.values()), max(starts.values())
    return ChangeStreamStage(
        streams, owner, view, first, last, specification.must_be_found, reads_at_once=specification.has_start
    )


@may_run_in_reactor
async def _times_of_arrival(operation: Operation, specification: Specification) -> dict[str, ShardReply]:
    """Return each known shard's reply with its last acknowledged write on arrival of the command, as from `_times`.

    The result is empty if the client specifies the start of the stream.
    """
    if specification.start_time is not None:
        return {}
    return await _times(operation, await operation.context.shards.ids_as_told())


@may_run_in_reactor
async def _times(operation: Operation, shard_ids: Collection[str]) -> dict[str, ShardReply]:
    """Return replies of shards with the time of their last acknowledged write, or with an error.

    They come from the primaries, because secondaries may lag behind.
    """
    preference = PRIMARY if operation.read_preference == PRIMARY else _PRIMARY_IF_THERE_IS_ONE
    frames: dict[str, bytes] = {}
    for shard_id in shard_ids:
        is_understood = operation.context.shards.is_understood(shard_id, ACKNOWLEDGED_TIME.decode(), preference)
        ping = append(_PING, ACKNOWLEDGED_TIME_ELEMENT) if is_understood else _PING
        frames[shard_id] = op_msg(ping, request_id=next_request_id())
    replies: dict[str, ShardReply] = {}
    await operation.sender.send_to_all(frames, replies, preference=preference)
    return replies


async def _starts(
    operation: Operation, specification: Specification, shard_ids: Collection[str], times: dict[str, ShardReply]
) -> dict[str, ResumeToken]:
    """Return each shard's start of the stream: the client's choice, or after the shard's last acknowledged write.

    The last write differs between shards: a write after the arrival of the command may get an earlier time than one
    that another shard had before. This router may not know the times of writes through other routers, because not all
    drivers gossip cluster times between routers.
    """
    if specification.resume_after is not None:
        return dict.fromkeys(shard_ids, specification.resume_after)
    if specification.start_at is not None:
        return dict.fromkeys(shard_ids, ResumeToken.high_water_mark(specification.start_at))
    added = [shard_id for shard_id in shard_ids if shard_id not in times]
    if added:
        times = {**times, **await _times(operation, added)}
    raise_worst(times[shard_id] for shard_id in shard_ids)
    last_writes = {shard_id: unpack_timestamp(times[shard_id].operation_time) for shard_id in shard_ids}
    return {shard_id: ResumeToken.high_water_mark(after(time)) for shard_id, time in last_writes.items()}


async def _check(operation: Operation) -> None:
    """Validate the whole pipeline and its token on a mongod, because the shards' streams get only a part."""
    context = operation.context
    kept = without(operation.request.body, (LSID, b"readConcern", b"$readPreference", b"maxTimeMS"))
    body = append(kept, encode_elements({"explain": True}))
    shard_id = await context.shards.any_id_as_told()
    frame = op_msg(body, request_id=next_request_id())
    reply = await context.sender.send(shard_id, frame, may_repeat=True)
    reply.raise_for_error()
