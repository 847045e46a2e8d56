"""The log of slow operations, and the filters that choose them.

A filter (``profile`` with ``filter``) is a query on the record that a profiler would write. A mongod defines the
meaning of queries, so one applies the filter to the records of many operations at once, after these were answered.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import bson
import trio

from shardwright.daemon.operation_metrics import OK
from shardwright.daemon.query_shape import slow_fields
from shardwright.router.change_streams.specification import applied_to
from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.local_operations import KINDS, namespace_shown, request_namespace
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    append,
    decode_document,
    element,
    encode_document,
    encode_elements,
    from_elements,
    index,
    raw_document,
)
from shardwright.wire.request import Request, shown_body

logger = get_logger("router.commands")

_WAITING_MAX: Final = 1000
"""Maximum number of operations waiting to be filtered; more are counted as lost and not logged."""

_BATCH_MAX: Final = 100

_COMMAND_BYTES_MAX: Final = 50_000
"""Maximum length of a recorded command, as in MongoDB."""


@dataclass(frozen=True, slots=True)
class _Record:
    """An operation for a filter to decide about.

    Attributes:
        query: the raw filter.
        recorded: the raw document that the filter applies to.
        line: the fields of the possible log line.
    """

    query: bytes
    recorded: bytes
    line: Mapping[str, Any]


class SlowLog:
    """Logger of the slow operations of one process."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._sender, self._receiver = trio.open_memory_channel[_Record](_WAITING_MAX)
        self._lost = context.metrics.counter(
            "unfiltered_operations", "Operations that could not be filtered for the log, and were not logged"
        )

    def consider(
        self, operation: Operation, outcome: str, seconds: float, answer: bytes | None, *, waits: bool
    ) -> None:
        """Log a slow operation, or queue it for its filter. It took at least ``SlowOperations.considered_ms``.

        Args:
            outcome: ``ok``, or the name of its error.
            answer: the frame of the reply; None for an error and for a relayed reply.
            waits: whether the client may have requested the wait.
        """
        query = self._context.slow_operations.filter_of(operation.request.db)
        if query is None:
            if not waits and self._context.slow_operations.is_sampled(seconds):
                _log(_line(operation, outcome, seconds, answer))
            return
        record = _Record(query, _recorded(operation, outcome, seconds), _line(operation, outcome, seconds, answer))
        try:
            self._sender.send_nowait(record)
        except trio.WouldBlock:
            self._lost.add()

    async def run(self) -> None:
        """Apply filters until cancelled."""
        async for first in self._receiver:
            records = [first]
            while len(records) < _BATCH_MAX and self._receiver.statistics().current_buffer_used:
                records.append(self._receiver.receive_nowait())
            by_query = defaultdict(list)
            for record in records:
                by_query[record.query].append(record)
            for query, alike in by_query.items():
                await self._log_matching(query, alike)

    async def _log_matching(self, query: bytes, records: Sequence[_Record]) -> None:
        try:
            matching = await self._matching(query, records)
        except (CommandError, BackendError) as error:
            self._lost.add(len(records))
            logger.warning("Could not filter operations for the log", operations=len(records), error=str(error))
            return
        for number in matching:
            _log(records[number].line)

    async def _matching(self, query: bytes, records: Sequence[_Record]) -> list[int]:
        """Return the positions of the records that match a query; raises the errors of a shard."""
        stages = [from_elements(element(b"$match", OBJECT, query)), encode_document({"$project": {"_id": 1}})]
        numbered = [append(record.recorded, encode_elements({"_id": at})) for at, record in enumerate(records)]
        body = bson.encode({"aggregate": 1, "cursor": {"batchSize": len(records)}, "$db": "admin"})
        frame = op_msg(
            append(body, element(b"pipeline", ARRAY, applied_to(numbered, stages))), request_id=next_request_id()
        )
        shard_id = await self._context.shards.any_id_as_told()
        reply = await self._context.sender.send(shard_id, frame, may_repeat=True)
        reply.raise_for_error()
        return [int(decode_document(found)["_id"]) for found in CursorReply.of(reply).documents()]


def _line(operation: Operation, outcome: str, seconds: float, answer: bytes | None) -> dict[str, Any]:
    request = operation.origin
    return {
        **slow_fields(operation.client, request, answer, seconds, operation.user_name),
        "namespace": request_namespace(request),
        "outcome": outcome,
        "shards": list(operation.targeted),
        "retries": operation.retries,
    }


def _log(line: Mapping[str, Any]) -> None:
    logger.info("Slow operation", **line)


def _recorded(operation: Operation, outcome: str, seconds: float) -> bytes:
    """Build the record that a profiler would write, from the fields available to the router."""
    request, client = operation.request, operation.client
    return bson.encode(
        {
            "op": KINDS.get(request.name, "command"),
            "ns": namespace_shown(request),
            "command": raw_document(_command(request)),
            "nShards": len(operation.targeted),
            **({} if outcome == OK else {"errName": outcome}),
            "protocol": "op_msg",
            "millis": int(seconds * 1000),
            "ts": datetime.now(UTC),
            "client": client.peer.rpartition(":")[0],
            **({"appName": client.app_name} if client.app_name else {}),
            "allUsers": [],
            "user": "",
        }
    )


def _command(request: Request) -> bytes:
    """Return a request's body without secrets and without the fields that exceed the size limit."""
    body = shown_body(request)
    if len(body) <= _COMMAND_BYTES_MAX:
        return body
    kept, room = [], _COMMAND_BYTES_MAX
    for _, start, _, end in index(body).values():
        if end - start <= room:
            kept.append(body[start:end])
            room -= end - start
    return from_elements(b"".join(kept))
