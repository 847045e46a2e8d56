"""``find``, ``getMore`` and ``killCursors``: documents that match a filter, batch by batch."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import bson
from bson.timestamp import Timestamp

from shardwright.daemon.users import CLUSTER, NO_PRIVILEGES, Resource, UserName
from shardwright.router.access.access_control import AccessControl, not_authorized
from shardwright.router.access.needs import Need
from shardwright.router.change_streams.errors import labelled
from shardwright.router.change_streams.stream_stage import ChangeStreamStage
from shardwright.router.context.options import FAIL_GET_MORE
from shardwright.router.cursors.open_cursor import CursorOwner
from shardwright.router.exec.merge import MergeStage
from shardwright.router.exec.shard import ShardStage
from shardwright.router.exec.stage import GetMore
from shardwright.router.lookup.aggregate import aggregate_view
from shardwright.router.operations.cursor_opening import (
    OpenedRead,
    answer_cursor,
    open_on_one_shard,
    open_on_shards,
    snapshot_of,
)
from shardwright.router.operations.nonexistent_namespace import check_is_missing, check_query
from shardwright.router.operations.operation import ContinuedOn, Merged, Operation, PassedOn
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded
from shardwright.router.placement.routing_info import CollectionRouting, collation_unless_simple, shards_for_read
from shardwright.router.processes.siblings import on_behalf_of, user_of_sibling, without_mark
from shardwright.router.processes.workers import forward_to_holder, holder_socket
from shardwright.router.reads.find_arguments import (
    REFUSED_TOKEN,
    FindArguments,
    GetMoreArguments,
    allows_partial_results,
    check_for_mongos,
    collation_of,
    filter_of,
    is_immortal,
    patience_seconds,
    requests_resume_token,
)
from shardwright.router.reads.read_concern import at_time
from shardwright.router.reads.result_merger import ResultMerger, ShareTooSmallError
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, missing_field, not_an_object, wrong_type
from shardwright.wire.rawbson import ARRAY, INT64, NULL, append, decode_value, encode_elements, spans
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor


@may_run_in_reactor
async def find(operation: Operation) -> Reply:
    """Returns documents that match a filter, from one shard or merged from several."""
    namespace = operation.namespace
    check_for_mongos(operation.request)
    if requests_resume_token(operation.request):
        await in_own_task()
        await check_query(operation)
        raise CommandError(ErrorCode.BadValue, REFUSED_TOKEN)
    filter_document = filter_of(operation.request)
    collation = collation_of(operation.request)

    @may_run_in_reactor
    async def attempt(routing: CollectionRouting) -> Reply:
        snapshot = snapshot_of(operation, routing.table)
        time = snapshot.reading
        shards = shards_for_read(routing, filter_document, collation, snapshot.targeting)
        if len(shards) == 1 and not allows_partial_results(operation.request):
            clock = operation.context.clock.time.cluster_time
            body = None if time is None else at_time(operation.request.body, time, clock)
            answer = await open_on_one_shard(
                operation,
                shards[0],
                forwarded(operation, routing.versions_for(shards[0]), body),
                preference=operation.read_preference,
                is_immortal=is_immortal(operation.request),
            )
            if body is None:
                operation.passed_on = PassedOn(routing, shards[0], preference=operation.read_preference)
            return answer
        return await _find_on_shards(operation, routing, shards, time)

    try:
        return await with_routing(operation, namespace, attempt)
    except ShardedViewError as error:
        return await answer_cursor(await aggregate_view(operation, error))
    except CommandError as error:
        check_is_missing(operation, error)
        await in_own_task()
        await check_query(operation)
        return empty_cursor(namespace)


@may_run_in_reactor
async def _find_on_shards(
    operation: Operation, routing: CollectionRouting, shards: tuple[str, ...], time: Timestamp | None
) -> Reply:
    """Open the cursor on several shards and return the first merged batch.

    If partial results are allowed, unreachable shards are left out.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    arguments = FindArguments.parse(operation.request)
    share = None
    if operation.begun_shares:
        (share,), operation.begun_shares = operation.begun_shares, ()
    elif time is None and operation.transaction is None:
        share = arguments.share(routing.limit_shares, len(shards))
    if share is not None:
        try:
            return await _find_shares(operation, routing, shards, arguments, share=share)
        except ShareTooSmallError:
            routing.limit_shares.note_exhausted()
    return await _find_shares(operation, routing, shards, arguments, time=time)


@may_run_in_reactor
async def _find_shares(
    operation: Operation,
    routing: CollectionRouting,
    shards: tuple[str, ...],
    arguments: FindArguments,
    *,
    time: Timestamp | None = None,
    share: int | None = None,
) -> Reply:
    """Do the same as `_find_on_shards`; with a share, each shard returns at most that part of the result.

    Raises:
        ShareTooSmallError: the shards may have more of the result.
    """
    request = operation.request
    is_collated = collation_unless_simple(routing, collation_of(request)) is not None
    field_order = None if is_collated else arguments.field_order
    body = arguments.body_for_shards(request.body, has_sort_keys=field_order is None, share=share)
    body = at_time(body, time, operation.context.clock.time.cluster_time)
    replies = await open_on_shards(
        operation,
        {shard: forwarded(operation, routing.versions_for(shard), body) for shard in shards},
        preference=operation.read_preference,
        allows_partial_results=arguments.allows_partial_results,
        patience_seconds=patience_seconds(request) if arguments.allows_partial_results else math.inf,
    )
    merger = ResultMerger(
        len(replies), order=field_order or arguments.order, skip=arguments.skip, limit=arguments.limit, share=share
    )
    root = MergeStage(
        operation.sender,
        routing.namespace,
        replies,
        merger,
        allows_partial_results=arguments.allows_partial_results,
        is_partial=len(replies) < len(shards),
        at_cluster_time=time,
    )
    answer = await answer_cursor(
        OpenedRead(operation, root, routing.namespace, arguments.batch_size),
        is_single_batch=arguments.is_single_batch,
        is_immortal=is_immortal(request),
    )
    if root.is_exhausted and time is None and not arguments.allows_partial_results:
        merged = Merged(shards, arguments, field_order or arguments.order, field_order is None, share)
        operation.passed_on = PassedOn(routing, shards[0], preference=operation.read_preference, merged=merged)
    return answer


async def get_more(operation: Operation) -> Reply:
    """Returns the next batch of a cursor."""
    user = user_of_sibling(operation.request)
    request = operation.request if user is None else without_mark(operation.request)
    arguments = GetMoreArguments.parse(request)
    forwarded = await forward_to_holder(
        operation.context, arguments.cursor_id, _frame_for_holder(operation, arguments.cursor_id)
    )
    if forwarded is not None:
        return forwarded
    cursors = operation.context.cursors
    owner = CursorOwner.of(request, operation.user if user is None else user.digest)
    await _check_privileges(operation, arguments.cursor_id, owner, user)
    with cursors.checked_out(arguments.cursor_id, arguments.namespace, owner, operation.client) as entry:
        root = entry.cursor.root
        operation.targeted = tuple(remote.shard_id for remote in root.remotes if not remote.is_exhausted)
        get_more = GetMore(request, operation.client, entry.id, arguments.batch_size, arguments.max_time_ms)
        operation.relayed = get_more.relayed
        with labelled() if isinstance(root, ChangeStreamStage) else nullcontext():
            operation.context.fail_points.fail_if_on(FAIL_GET_MORE)
            if user is None and isinstance(root, ShardStage) and root.plain_remote is not None:
                operation.passed_on = ContinuedOn(arguments.namespace)
            return await entry.cursor.next_batch(get_more)
    raise AssertionError("a checked out cursor answers or raises")


def _frame_for_holder(operation: Operation, cursor_id: int) -> bytes:
    """Return the frame for the process that holds the cursor, with the user, which that process cannot determine."""
    request, user = operation.request, operation.acting_user
    if user is None or holder_socket(operation.context.options, cursor_id) is None:
        return request.message.frame
    return request.with_body(append(request.body, encode_elements(on_behalf_of(user)))).message.frame


async def _check_privileges(
    operation: Operation, cursor_id: int, owner: CursorOwner, sibling_user: UserName | None
) -> None:
    """Refuse to continue a cursor whose command the user may no longer run."""
    access, entry = operation.context.access, operation.context.cursors.find(cursor_id)
    if access is None or entry is None or entry.owner != owner or entry.owner.admitted is None:
        return
    admitted = entry.owner.admitted
    if sibling_user is None:
        may_go_on = access.may_still_run(operation.client, admitted)
    else:
        may_go_on = await access.may_be_run_for(sibling_user, admitted)
    if not may_go_on:
        raise CommandError(ErrorCode.Unauthorized, f"not authorized for getMore with cursor id {cursor_id}")


_STRUCT: Final = "killCursors"


async def kill_cursors(operation: Operation) -> Reply:
    """Kills cursors by their ids."""
    context, db = operation.context, operation.request.db
    cursor_ids = _cursor_ids(operation.request)
    if context.access is not None:
        await _check_owners(operation, context.access, cursor_ids)
    killed: set[int] = set()
    elsewhere: dict[str, list[bson.Int64]] = {}
    for cursor_id in cursor_ids:
        socket = holder_socket(context.options, cursor_id)
        if socket is not None:
            elsewhere.setdefault(socket, []).append(bson.Int64(cursor_id))
        elif context.cursors.kill(cursor_id, db):
            killed.add(cursor_id)
    for socket, held in elsewhere.items():
        killed.update(await _killed_by_sibling(operation, socket, held))
    ended: list[bson.Int64] = []
    not_found: list[bson.Int64] = []
    for cursor_id in cursor_ids:
        (ended if cursor_id in killed else not_found).append(bson.Int64(cursor_id))
        killed.discard(cursor_id)  # an id that occurs twice is killed once
    return {"cursorsKilled": ended, "cursorsNotFound": not_found, "cursorsAlive": [], "cursorsUnknown": []}


async def _check_owners(operation: Operation, access: AccessControl, cursor_ids: Sequence[int]) -> None:
    """Refuse to kill any of the cursors if one belongs to another user and the privilege for that is missing."""
    request = operation.request
    sibling_user = user_of_sibling(request)
    user = CursorOwner.of(request, operation.user).user if sibling_user is None else sibling_user.digest
    found = (operation.context.cursors.find(cursor_id) for cursor_id in cursor_ids)
    if all(entry is None or entry.owner.user in (user, b"") for entry in found):
        return
    privileges = access.privileges_of(operation.client)
    if sibling_user is not None:
        authorized = await access.users.find(sibling_user)
        privileges = NO_PRIVILEGES if authorized is None else authorized.privileges
    places = (CLUSTER, Resource(request.db, request.collection))
    if not any(Need("killAnyCursor", place).is_met(privileges) for place in places):
        raise not_authorized(request)


async def _killed_by_sibling(operation: Operation, socket: str, cursor_ids: list[bson.Int64]) -> list[int]:
    """Kill cursors that another process of this router holds; return the killed ones."""
    killing = {"killCursors": operation.argument(operation.request.name.encode()), "cursors": cursor_ids}
    user = operation.acting_user
    if user is not None:
        killing |= on_behalf_of(user)
    try:
        reply = await operation.context.pools[socket].command(operation.request.db, killing)
    except BackendError:  # the worker has crashed, and its cursors with it
        return []
    except CommandError as error:
        # Replaces the sibling's error text, which shows the internal command.
        raise not_authorized(operation.request) if error.code == ErrorCode.Unauthorized else error from error
    ended: list[int] = reply["cursorsKilled"]
    return ended


def _cursor_ids(request: Request) -> list[int]:
    """Return the ids to kill."""
    Namespace(request.db, request.collection).check_valid()
    cursors = request.fields.get(b"cursors")
    if cursors is None:
        raise missing_field(f"{_STRUCT}.cursors")
    if cursors[0] == NULL:
        raise not_an_object("cursors")
    if cursors[0] != ARRAY:
        raise wrong_type(f"{_STRUCT}.cursors", cursors[0], "array")
    found: list[int] = []
    for name, span in spans(request.body, cursors[2]):
        if span[0] != INT64:
            raise wrong_type(f"{_STRUCT}.cursors.{name.decode(errors='replace')}", span[0], "long")
        found.append(decode_value(request.body, span))
    return found
