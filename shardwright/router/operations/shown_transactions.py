"""The open transactions of this router process, as ``$currentOp`` shows them."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.router.transactions.router_transaction import Participant, Phase, RouterTransaction
from shardwright.router.transactions.transaction_table import RouterSession, TransactionTable
from shardwright.router.transactions.transaction_times import iso_text

_OPEN: Final = frozenset({Phase.IN_PROGRESS, Phase.COMMITTING})
_UUID_BYTES: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)


def shown_transaction(transaction: RouterTransaction) -> dict[str, Any]:
    """The field ``transaction``, with mongos's fields.

    Args:
        transaction: the transaction.
    """
    times, read_concern = transaction.times, transaction.read_concern
    active_seconds, open_seconds = times.active_seconds, times.open_seconds
    participants = transaction.participants
    shown: dict[str, Any] = {
        "parameters": {
            "txnNumber": Int64(transaction.number),
            "autocommit": False,
            **({"readConcern": read_concern} if read_concern else {}),
        },
        **({} if transaction.at_cluster_time is None else {"globalReadTimestamp": transaction.at_cluster_time}),
        "startWallClockTime": iso_text(times.started),
        "timeOpenMicros": _micros(open_seconds),
        "timeActiveMicros": _micros(active_seconds),
        "timeInactiveMicros": _micros(max(0.0, open_seconds - active_seconds)),
        "numParticipants": len(participants),
        "participants": [
            _participant(shard, each, is_coordinator=shard == transaction.coordinator)
            for shard, each in participants.items()
        ],
        "numReadOnlyParticipants": _count(participants, is_read_only=True),
        "numNonReadOnlyParticipants": _count(participants, is_read_only=False),
    }
    if times.commit_started is not None and transaction.commit_plan is not None:
        shown["commitStartWallClockTime"] = iso_text(times.commit_started)
        shown["commitType"] = transaction.commit_plan.path.value
    return shown


def idle_sessions(table: TransactionTable, address: str, user: bytes | None) -> Iterator[dict[str, Any]]:
    """The sessions with an open transaction in which no command is running.

    Args:
        table: has them.
        address: ``host:port`` of this router.
        user: the digest of the user whose sessions are meant; None for all.
    """
    for key, session in table.sessions.items():
        transaction = session.transaction
        if transaction is None or transaction.phase not in _OPEN or session.is_active:
            continue
        if user is not None and key[_UUID_BYTES:] != user:
            continue
        yield {
            "type": "idleSession",
            "host": address,
            "desc": "inactive transaction",
            **_client(session),
            "lsid": {"id": Binary(key[:_UUID_BYTES], UUID_SUBTYPE), "uid": Binary(key[_UUID_BYTES:])},
            "active": False,
            "transaction": shown_transaction(transaction),
        }


def _client(session: RouterSession) -> dict[str, Any]:
    """The client that has begun the transaction."""
    client = session.client
    if client is None:
        return {}
    metadata = client.metadata or {}
    name = metadata.get("application", {}).get("name", "")
    return {
        "client": client.peer,
        "connectionId": client.id,
        "appName": name,
        **({"clientMetadata": metadata} if metadata else {}),
    }


def _participant(shard: str, participant: Participant, *, is_coordinator: bool) -> dict[str, Any]:
    known = {} if participant.is_read_only is None else {"readOnly": participant.is_read_only}
    return {"name": shard, "coordinator": is_coordinator, **known}


def _count(participants: Mapping[str, Participant], *, is_read_only: bool) -> int:
    return sum(each.is_read_only is is_read_only for each in participants.values())


def _micros(seconds: float) -> Int64:
    return Int64(timedelta(seconds=seconds) // _MICROSECOND)
