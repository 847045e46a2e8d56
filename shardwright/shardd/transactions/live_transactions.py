"""mongod's records of the transactions that are open on it.

Functions that access mongod raise CommandError if it refuses, and BackendError if it does not answer.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import bson
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.transactions.session_keys import session_key
from shardwright.wire.rawbson import OBJECT, raw_document
from shardwright.wire.transport.cursor import DecodedCursor

_PREPARED: Final = "prepared"
_ANY_MEMBER: Final = {"mode": "nearest"}


class LiveTransaction(NamedTuple):
    """A transaction that is open on mongod; for `session` see `session_keys.session_key`."""

    session: bytes
    number: int
    is_prepared: bool
    lsid: Mapping[str, Any]


async def live_transactions(mongod: LocalMongod) -> list[LiveTransaction]:
    """Return all transactions that are open on mongod."""
    # Transactions between two statements are listed as sessions, the others as operations.
    operations = {"$currentOp": {"allUsers": True, "idleSessions": True}}
    pipeline = [operations, {"$match": {"transaction.parameters.autocommit": False}}]
    listing = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
    found: list[LiveTransaction] = []
    for operation in await DecodedCursor(mongod.command, "admin", listing).all_documents():
        lsid, transaction = operation["lsid"], operation["transaction"]
        session = session_of_document(lsid)
        number = int(transaction["parameters"]["txnNumber"])
        found.append(LiveTransaction(session, number, "timePreparedMicros" in transaction, lsid))
    return found


async def still_prepared(mongod: LocalMongod, sessions: Iterable[bytes]) -> set[tuple[bytes, int]]:
    """Return the prepared transactions of some sessions, by session and number."""
    query = {"_id": {"$in": [raw_document(each) for each in sessions]}, "state": _PREPARED}
    return {(session, number) async for session, number, _ in _prepared_entries(mongod, query)}


async def prepared_transactions(mongod: LocalMongod) -> AsyncIterator[tuple[bytes, int, set[str]]]:
    """Yield all prepared transactions: session, number, and the namespaces that they have written to."""
    async for session, number, last in _prepared_entries(mongod, {"state": _PREPARED}):
        yield session, number, await _namespaces_written(mongod, last)


async def _prepared_entries(
    mongod: LocalMongod, query: Mapping[str, Any]
) -> AsyncIterator[tuple[bytes, int, Timestamp]]:
    """Yield session, number, and time of the last oplog entry of some entries of ``config.transactions``."""
    find = {"find": "transactions", "filter": query, "$readPreference": _ANY_MEMBER}
    for entry in await DecodedCursor(mongod.command, "config", find).all_documents():
        yield session_of_document(entry["_id"]), int(entry["txnNum"]), entry["lastWriteOpTime"]["ts"]


async def _namespaces_written(mongod: LocalMongod, last: Timestamp) -> set[str]:
    """Return the namespaces in a transaction's chain of oplog entries, from its last one back."""
    namespaces: set[str] = set()
    while last.time:
        projection = {"o.applyOps.ns": 1, "prevOpTime": 1}
        find = {"find": "oplog.rs", "filter": {"ts": last}, "projection": projection, "$readPreference": _ANY_MEMBER}
        entries = await DecodedCursor(mongod.command, "local", find).all_documents()
        if not entries:
            return namespaces  # older than the oplog, which mongod keeps back to the oldest prepared transaction
        namespaces.update(each["ns"] for each in entries[0]["o"]["applyOps"])
        last = entries[0]["prevOpTime"]["ts"]
    return namespaces


def session_of_document(lsid: Mapping[str, Any]) -> bytes:
    """Return the key of a session in mongod's output."""
    raw = bson.encode(lsid)
    session = session_key(raw, (OBJECT, 0, 0, len(raw)))
    assert session is not None
    return session
