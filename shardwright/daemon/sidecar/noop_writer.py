"""Writing no-ops into the oplog, for operations that wait for a cluster time, for a majority, or for a new time.

A mongod answers an operation with ``afterClusterTime`` or ``atClusterTime`` once its oplog has reached that time. The
time is often another shard's, and on an idle set the oplog only grows by a periodic no-op every ten seconds. A genuine
shard or config server therefore first writes a no-op itself. A plain replica set member does not, so its sidecar does.

The times of writes that the sidecar forwards need no no-op. A session that reads after its own write, or begins a
transaction after the previous one, waits only for such times.

mongod rejects a note (LockFailed) if it does not get the global lock within a millisecond. On config servers each
change of the catalog takes that lock, because ``applyOps`` with a precondition does. So notes often conflict with one.
"""

from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import OBJECT, TIMESTAMP, decode_value, element, index
from shardwright.wire.request import Request

logger = get_logger("daemon.sidecar.noop_writer")

READ_CONCERN: Final = b"readConcern"
_AWAITED: Final = (b"afterClusterTime", b"atClusterTime")
"""A read concern has at most one of these."""

_ANY_AWAITED: Final = b"ClusterTime"

_CLUSTER_TIME: Final = b"$clusterTime"

_unpack_time: Final = Struct("<II").unpack_from
_OPERATION_TIME: Final = element(b"operationTime", TIMESTAMP, b"")
_TIME_FROM_END: Final = 9
"""A reply usually ends with this time, and the end of the document."""

_WRITE_SECONDS_MAX: Final = 1.0
"""Longest wait of a request for a no-op. The primary may be frozen, and the oplog may reach the time without it."""

_BEGINNING: Final = (0, 0)
"""Seconds and increment: replies are recorded far more often than a time is awaited, and tuples compare quickly."""

NOTE_SECONDS_MAX: Final = 10.0
"""Maximum time for retries of a note."""

_NOTE_PAUSE_SECONDS: Final = 0.002
_NOTE_PAUSE_SECONDS_MAX: Final = 0.1

_WAIT_FOR_MAJORITY: Final = {
    "appendOplogNote": 1,
    "data": {"msg": "wait for majority"},
    "writeConcern": {"w": "majority"},
}


class NoopWriter:
    """The advance of this set's oplog to the times that clients wait for."""

    def __init__(self, mongod: LocalMongod, mirror: HelloMirror) -> None:
        self._mongod = mongod
        self._mirror = mirror
        self._reached = _BEGINNING
        self._term: int | None = None
        self._writing = trio.Lock()

    def has_to_reach(self, request: Request) -> bool:
        """Whether a request waits for a time that the oplog may not have reached."""
        awaited = awaited_time(request)
        return awaited is not None and _seconds_and_increment(awaited) > self._reached

    def has_reached(self, frame: bytes, at: int) -> bool:
        """Whether the oplog has certainly reached the time in the 8 bytes at an offset."""
        increment, seconds = _unpack_time(frame, at)
        return (seconds, increment) <= self._reached

    async def begin_term(self, term: int) -> None:
        """Record the oplog time at the beginning of a term as primary.

        Raises:
            CommandError: the mongod refuses.
            BackendError: it does not answer.
        """
        time: Timestamp = (await self._mongod.command("admin", {"ping": 1}))["operationTime"]
        self._note(_seconds_and_increment(time))
        self._term = term

    def acknowledged_time(self, term: int | None) -> Timestamp | None:
        """Return the time of the last acknowledged write or later; None unless `begin_term` has recorded this term."""
        return Timestamp(*self._reached) if term is not None and term == self._term else None

    def note_reply(self, reply: bytes) -> None:
        """Record the oplog time at the end of a reply frame, if any, from a command that mongod executed as primary."""
        at = len(reply) - _TIME_FROM_END
        if reply.startswith(_OPERATION_TIME, at - len(_OPERATION_TIME)):
            increment, seconds = _unpack_time(reply, at)
            self._note((seconds, increment))

    def _note(self, reached: tuple[int, int]) -> None:
        if reached > self._reached:
            self._reached = reached

    async def reach(self, request: Request) -> None:
        """Advance the oplog to the time that a request waits for, if any.

        If that fails or takes long, the request simply waits, as it would on a genuine server.
        """
        awaited = awaited_time(request)
        if awaited is None or _seconds_and_increment(awaited) <= self._reached:
            return
        with trio.move_on_after(_WRITE_SECONDS_MAX):
            async with self._writing:
                try:
                    await self._advance(awaited, request)
                except (BackendError, CommandError) as error:
                    logger.warning("Could not write a no-op", error=str(error))

    async def _advance(self, awaited: Timestamp, request: Request) -> None:
        """Write a no-op, unless the oplog of the mongod has reached the time by itself."""
        hello: Any = self._mirror.hello
        primary = hello and hello.get("primary")
        if primary != self._mongod.address and _seconds_and_increment(awaited) > self._reached:
            reached: Timestamp = (await self._mongod.pool.command("admin", {"ping": 1}))["operationTime"]
            self._note(_seconds_and_increment(reached))
        if primary is not None and _seconds_and_increment(awaited) > self._reached:
            await self._write(primary, awaited, request.get(_CLUSTER_TIME))

    async def _write(
        self,
        primary: str,
        awaited: Timestamp,
        cluster_time: Any,  # noqa: ANN401 - whatever a client sent
    ) -> None:
        pool = self._mongod.pool_of_member(primary)
        note: dict[str, Any] = {"noop write for afterClusterTime read concern": 1}
        command: dict[str, Any] = {"appendOplogNote": 1, "maxClusterTime": awaited, "data": note}
        if cluster_time is not None:
            # A mongod gives its no-op the next time after its newest cluster time, which may be earlier than this one.
            command["$clusterTime"] = cluster_time
        try:
            written: Timestamp = (await append_oplog_note(pool.command, command))["operationTime"]
        except CommandError as error:
            if error.code != ErrorCode.StaleClusterTime:  # the oplog has already reached that time
                raise
            written = awaited
        # This does not reach a time in the future, which must not prevent other times from being reached.
        self._note(_seconds_and_increment(min(awaited, written)))


def _seconds_and_increment(time: Timestamp) -> tuple[int, int]:
    return time.time, time.inc


def awaited_time(request: Request) -> Timestamp | None:
    """Return the cluster time that a request waits for before it reads; None if there is none."""
    span = request.fields.get(READ_CONCERN)
    if span is None or span[0] != OBJECT:
        return None
    if request.body.find(_ANY_AWAITED, span[2], span[3]) < 0:
        return None  # nearly always
    fields = index(request.body, span[2])
    for name in _AWAITED:
        awaited = fields.get(name)
        if awaited is not None and awaited[0] == TIMESTAMP:
            timestamp: Timestamp = decode_value(request.body, awaited)
            return timestamp
    return None


async def append_oplog_note(
    run: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]], note: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a note, retrying while mongod's global lock is taken; return the reply.

    Args:
        run: runs a command on a database, and returns its reply.

    Raises:
        CommandError: LockFailed, the lock was taken for a long time; as ``run``.
        BackendError: as ``run``.
    """
    backoff, deadline = Backoff(_NOTE_PAUSE_SECONDS, _NOTE_PAUSE_SECONDS_MAX), trio.current_time() + NOTE_SECONDS_MAX
    while True:
        try:
            return await run("admin", note)
        except CommandError as error:
            if error.code != ErrorCode.LockFailed or trio.current_time() >= deadline:
                raise
        await backoff.pause()


async def wait_for_majority(run: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Wait until a majority of the set has everything that its primary has now.

    Args:
        run: as `append_oplog_note`, on the primary.

    Raises:
        CommandError: WriteConcernFailed, the wait took too long; or as `append_oplog_note`.
        BackendError: as ``run``.
    """
    check_writes(await append_oplog_note(run, _WAIT_FOR_MAJORITY))
