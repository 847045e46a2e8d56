"""Metrics of the mongod behind a sidecar: its state in the replica set, its lag, its oplog and its documents.

They are read from the mongod every few seconds, so that ``/metrics`` never waits for it. This module also adds two
sections that a plain mongod's replies lack: ``shardingStatistics`` of ``serverStatus`` and ``replicaSets`` of
``connPoolStats``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import trio
from bson.timestamp import Timestamp

from shardwright.daemon.metrics import Metrics
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import with_body
from shardwright.wire.rawbson import OBJECT, append, decode_value, element, encode_document, find, without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.monitor import ReplicaSetMonitor

logger = get_logger("daemon.sidecar")

CONN_POOL_STATS: Final = "connPoolStats"
"""The command."""

READ_SECONDS: Final = 10.0
"""Pause between two readings."""

STATES: Final = {
    0: "startup",
    1: "primary",
    2: "secondary",
    3: "recovering",
    5: "startup2",
    6: "unknown",
    7: "arbiter",
    8: "down",
    9: "rollback",
    10: "removed",
}
"""MongoDB's states of members (``replSetGetStatus``)."""

_UNKNOWN: Final = 6
_DOCUMENTS: Final = ("inserted", "updated", "deleted", "returned")
_LEFT_OUT: Final = ("wiredTiger", "tcmalloc", "locks", "transportSecurity", "indexBulkBuilder", "electionMetrics")
"""Long sections of ``serverStatus`` that are not read."""


class MemberMetrics:
    """The last state read from the mongod."""

    def __init__(self, metrics: Metrics, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._state = _UNKNOWN
        self._lag_seconds: float | None = None
        self._oplog_seconds: float | None = None
        self._documents: dict[str, float] = dict.fromkeys(_DOCUMENTS, 0)
        metrics.labelled_gauge(
            "member_state",
            "1 for the present state of the mongod in its replica set, 0 for all others",
            "state",
            lambda: {name: number == self._state for number, name in STATES.items()},
        )
        metrics.gauges(
            "replication_lag_seconds",
            "Time by which the data of the mongod is behind the primary's; absent if there is no primary",
            (),
            lambda: {} if self._lag_seconds is None else {(): self._lag_seconds},
        )
        metrics.gauges(
            "oplog_window_seconds",
            "Time between the first and the last entry of the mongod's oplog",
            (),
            lambda: {} if self._oplog_seconds is None else {(): self._oplog_seconds},
        )
        metrics.observed_counters(
            "mongod_documents",
            "Documents that the mongod has inserted, updated, deleted and returned, from its serverStatus",
            ("kind",),
            lambda: {(kind,): number for kind, number in self._documents.items()},
        )

    async def run(self) -> None:
        """Read repeatedly, until cancelled."""
        while True:
            try:
                await self.read()
            except (BackendError, CommandError) as error:
                self._state, self._lag_seconds, self._oplog_seconds = _UNKNOWN, None, None
                logger.debug("Could not read the state of the mongod", error=str(error))
            await trio.sleep(READ_SECONDS)

    async def read(self) -> None:
        """Read once.

        Raises:
            CommandError: the mongod refuses, for example before its set is initiated.
            BackendError: the mongod does not answer.
        """
        run = self._sidecar.mongod.command
        status = await run("admin", {"replSetGetStatus": 1})
        self._state, self._lag_seconds = int(status["myState"]), lag_seconds(status)
        self._oplog_seconds = await self._read_oplog_seconds()
        document = await run("admin", {"serverStatus": 1, **dict.fromkeys(_LEFT_OUT, 0)})
        counts = document.get("metrics", {}).get("document", {})
        self._documents = {kind: float(counts.get(kind, 0)) for kind in _DOCUMENTS}

    async def _read_oplog_seconds(self) -> float | None:
        times = []
        for order in (1, -1):
            entries = {"find": "oplog.rs", "sort": {"$natural": order}, "projection": {"ts": 1}, "limit": 1}
            reply = await self._sidecar.mongod.command("local", {**entries, "singleBatch": True})
            times += [entry["ts"] for entry in reply["cursor"]["firstBatch"]]
        first, last = times if len(times) == 2 else (None, None)
        return last.time - first.time if isinstance(first, Timestamp) and isinstance(last, Timestamp) else None


def lag_seconds(status: Mapping[str, Any]) -> float | None:
    """Return the replication lag in a member's ``replSetGetStatus``; None if there is no primary."""
    members = status.get("members", ())
    own = next((each for each in members if each.get("self")), None)
    primary = next((each for each in members if each.get("stateStr") == "PRIMARY"), None)
    if own is None or primary is None or "optimeDate" not in own or "optimeDate" not in primary:
        return None
    return max(0.0, float((primary["optimeDate"] - own["optimeDate"]).total_seconds()))


_SECTION: Final = b"shardingStatistics"
_REPLICA_SETS: Final = b"replicaSets"


def with_sharding_statistics(frame: bytes | None, request: Request, section: Mapping[str, Any]) -> bytes | None:
    """Add the daemon's section to mongod's reply to ``serverStatus``.

    Args:
        request: the command, which may exclude the section by ``{shardingStatistics: 0}``.
        section: the daemon's statistics; nothing is added if it is empty.
    """
    if not section or request.get(_SECTION) in (0, False):
        return frame
    return _with_section(frame, _SECTION, section)


def with_replica_sets(frame: bytes | None, monitors: Iterable[ReplicaSetMonitor]) -> bytes | None:
    """Show the replica sets that the daemon follows in mongod's reply to ``connPoolStats``."""
    return _with_section(frame, _REPLICA_SETS, {each.set_name: each.description() for each in monitors})


def _with_section(frame: bytes | None, name: bytes, section: Mapping[str, Any]) -> bytes | None:
    """Set a section of a mongod's reply, unless the reply is an error."""
    if frame is None:
        return None
    body = response_body(frame)
    ok = find(body, b"ok")
    if ok is None or not decode_value(body, ok):
        return frame
    return with_body(frame, append(without(body, {name}), element(name, OBJECT, encode_document(section))))
