"""Executing one statement of a retryable write in a transaction, so that its history goes with every range that moves.

A retry is routed by the shard key in its query, and has to find its history there. Migrations pass on what was inserted
by the shard key of the document, because a session may have inserted much that does not move. So an upsert of a
document with another key than its query is executed like a write that a router executes in a transaction: in a session
derived from that of the write, whose statements are passed on with all ranges (`session_history.child_sessions`). By
it mongod recognizes a retry, too.
"""

from typing import Any, Final
from uuid import uuid4

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.session_history.statement import session_of
from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR
from shardwright.wire.frames import next_request_id
from shardwright.wire.rawbson import append, decode_document, encode_document, encode_elements, raw_document, without
from shardwright.wire.transport.client import response_body
from shardwright.wire.write_concern import WRITE_CONCERN

_NOT_IN_TRANSACTION: Final = frozenset(
    {b"lsid", TXN_NUMBER, WRITE_CONCERN, b"apiVersion", b"apiStrict", b"apiDeprecationErrors"}
)
_ATTEMPTS_MAX: Final = 100
_FIRST_PAUSE_SECONDS: Final = 0.001
_PAUSE_SECONDS_MAX: Final = 0.1


async def run_in_child_transaction(changing: KeyChangingRequest, body: bytes) -> dict[str, Any]:
    """The reply to a statement of a retryable write, with the times and the write concern error of its commit.

    Args:
        changing: the retryable write.
        body: the command that executes the statement, with its statement id.

    Raises:
        BackendError: mongod does not answer.
    """
    request = changing.request
    session = session_of(request.body, request.fields[b"lsid"])
    assert session is not None  # mongod has history only for such sessions, and `has_begun` has looked for it
    write = {"txnNumber": request.get(TXN_NUMBER), "txnUUID": Binary.from_uuid(uuid4())}
    lsid = raw_document(append(session, encode_elements(write)))
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
    for number in range(_ATTEMPTS_MAX):
        transaction = {"lsid": lsid, "txnNumber": Int64(number), AUTOCOMMIT.decode(): False}
        reply = await _attempt(changing, body, transaction)
        if TRANSIENT_TRANSACTION_ERROR not in reply.get("errorLabels", ()):
            return reply
        await backoff.pause()
    return {name: value for name, value in reply.items() if name != "errorLabels"}


async def _attempt(changing: KeyChangingRequest, body: bytes, transaction: dict[str, Any]) -> dict[str, Any]:
    start = {**transaction, START_TRANSACTION.decode(): True}
    statement = append(without(body, _NOT_IN_TRANSACTION), encode_elements(start))
    reply = await _reply(changing, statement)
    if not reply.get("ok") or "writeErrors" in reply:
        return reply  # mongod has aborted the transaction
    request = changing.request
    options = {name.decode(): request.get(name) for name in (WRITE_CONCERN, BYPASS.encode()) if name in request.fields}
    commit = encode_document({"commitTransaction": 1, **transaction, **options, "$db": "admin"})
    committed = await _reply(changing, commit)
    return {**reply, **committed} if committed.get("ok") else committed


async def _reply(changing: KeyChangingRequest, body: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = decode_document(response_body(await changing.exchange(body, next_request_id())))
    return reply
