"""Updates and deletes of measurements that run as statements on buckets, with replies that count measurements.

mongod counts measurements only where it knows that the statement is about them, and then takes no filter for orphans
(see `orphans.bucket_statements`). So they are counted beside each statement, just before it: what others insert in
between is changed or removed with its bucket, but not counted. Of an update that changes only some of the buckets that
match, ``nModified`` is the number of these buckets.
"""

from collections.abc import Mapping
from typing import Any, Final

import bson

from shardwright.shardd.exchange.term_exchange import TermExchange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.errors import CommandError
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg, reply_document
from shardwright.wire.rawbson import (
    ARRAY,
    append,
    array_of_documents,
    decode_document,
    element,
    find,
    raw_document,
    without,
)
from shardwright.wire.request import Request

_STATEMENTS: Final[Mapping[str, bytes]] = {"update": b"updates", "delete": b"deletes"}


class CountedMeasurements:
    """One such request.

    Args:
        exchange: runs it.
        namespace: the buckets.
        request: on buckets, with the filter for orphans.
        fields: how measurements are made into buckets.
    """

    def __init__(
        self, exchange: TermExchange, namespace: Namespace, request: Request, fields: TimeSeriesFields
    ) -> None:
        self._exchange = exchange
        self._namespace = namespace
        self._request = request
        self._statements = _STATEMENTS[request.name]
        self._measurements = _number_of_measurements(fields)

    async def run(self) -> bytes | None:
        """The reply; None if the client wants none.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer, or has answered in another term.
        """
        if self._request.message.flags & MORE_TO_COME:
            return await self._exchange.run(self._request)
        merged: dict[str, Any] = {}
        is_ordered = bool(self._request.get(b"ordered", True))
        for position, statement in enumerate(self._request.documents(self._statements)):
            reply = await self._run_statement(statement)
            if not reply["ok"]:
                return reply_document(self._request.message.request_id, reply)
            _merge(merged, reply, position)
            if is_ordered and "writeErrors" in reply:
                break
        return reply_document(self._request.message.request_id, merged)

    async def _run_statement(self, statement: bytes) -> dict[str, Any]:
        counted = await self._count(statement)
        only = element(self._statements, ARRAY, array_of_documents([statement]))
        body = append(without(self._request.body, (self._statements,)), only)
        message = self._request.message
        frame = await self._exchange.run(Request(OpMsg(op_msg(body, request_id=message.request_id))))
        assert frame is not None  # an acknowledged write has a reply, and is not relayed
        reply: dict[str, Any] = bson.decode(OpMsg(frame).body)
        if counted is not None and reply.get("n"):
            if reply.get("nModified") == reply["n"]:
                reply["nModified"] = counted
            reply["n"] = counted
        return reply

    async def _count(self, statement: bytes) -> int | None:
        """The number of measurements in the buckets that match; None if that cannot be found out."""
        fields: dict[str, Any] = decode_document(statement)
        query = find(statement, b"q")
        assert query is not None  # as the statement has been translated
        match = raw_document(statement[query[2] : query[3]])
        group = {"_id": None, "n": {"$sum": self._measurements}}
        counting = {
            "aggregate": self._namespace.collection,
            "pipeline": [{"$match": match}, {"$group": group}],
            "cursor": {},
            **({"collation": fields["collation"]} if "collation" in fields else {}),
        }
        if (variables := self._request.get(b"let")) is not None:
            counting["let"] = variables
        try:
            reply = await self._exchange.command(self._namespace.db, counting)
        except CommandError:
            return None  # the statement is refused as well, in mongod's own words
        found = reply["cursor"]["firstBatch"]
        return int(found[0]["n"]) if found else 0


def _number_of_measurements(fields: TimeSeriesFields) -> dict[str, Any]:
    """The expression for a bucket: those that are compressed say it, others have one time for each."""
    times = {"$objectToArray": {"$ifNull": [f"$data.{fields.time_field}", {}]}}
    return {"$cond": [{"$eq": ["$control.version", 2]}, "$control.count", {"$size": times}]}


def _merge(merged: dict[str, Any], reply: Mapping[str, Any], position: int) -> None:
    """Add the reply to the statement at a position to those before it."""
    numbers = {name: merged.get(name, 0) + reply[name] for name in ("n", "nModified") if name in reply}
    errors = [*merged.get("writeErrors", ()), *({**each, "index": position} for each in reply.get("writeErrors", ()))]
    merged |= {**reply, **numbers}
    if errors:
        merged["writeErrors"] = errors
