"""One transaction of a reserved session, statement by statement, within one term of the local mongod.

Replies are inspected without decoding the documents in them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import REPLICATION_DATA, LocalMongod
from shardwright.daemon.sidecar.reply_term import term_of_body
from shardwright.daemon.sidecar.term_fence import check_term, term_of_task
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import encode_sequence, op_msg
from shardwright.wire.rawbson import ARRAY, Span, decode_document, find
from shardwright.wire.transport.client import response_body

_OK: Final = b"\0\0\0\0\0\0\xf0?"


def is_ok(reply: bytes) -> bool:
    """Whether a command succeeded."""
    ok = find(reply, b"ok")
    return ok is not None and reply[ok[2] : ok[3]] == _OK


def check_reply(reply: bytes) -> None:
    """Raise the error of a command, of one of its items, or of its write concern."""
    if is_ok(reply) and find(reply, b"writeErrors") is None and find(reply, b"writeConcernError") is None:
        return
    decoded = decode_document(reply)
    if not decoded.get("ok"):
        raise CommandError.from_reply(decoded)
    check_writes(decoded)


def required_array(reply: bytes, name: bytes) -> Span:
    """Find an array in a reply, or raise FailedToParse."""
    span = find(reply, name)
    if span is None or span[0] != ARRAY:
        raise CommandError(ErrorCode.FailedToParse, f"the reply has no array '{name.decode()}'")
    return span


_ENDED: Final = frozenset({ErrorCode.NoSuchTransaction, ErrorCode.TransactionCommitted})


class Transaction:
    """One open transaction. Statements are run one after the other. BackendError means that mongod does not answer."""

    def __init__(self, mongod: LocalMongod, lsid: Mapping[str, Any], number: int) -> None:
        self._mongod = mongod
        self._fields: dict[str, Any] = {"lsid": lsid, "txnNumber": Int64(number), "autocommit": False}
        self._has_begun = False

    async def run(
        self, db: str, body: Mapping[str, Any], sequence: tuple[bytes, Sequence[bytes]] | None = None
    ) -> bytes:
        """Run one statement; return the raw body of the reply.

        If the task works for a term, the statement fails in any other. A transaction therefore commits only in the term
        of its statements, because mongod aborts open transactions when it steps down.

        Args:
            body: the command without session and transaction fields.
            sequence: name and raw documents of an argument that is sent as a document sequence.

        Raises:
            CommandError: the statement, or one of its items, failed; InterruptedDueToReplStateChange, the term is over.
                In either case the transaction can only be aborted.
        """
        await self._mongod.check_term_before()
        reply = await self._exchange(db, body, sequence)
        check_reply(reply)
        expected = term_of_task()
        if expected is not None:
            check_term(expected, term_of_body(reply))
        return reply

    async def _exchange(
        self, db: str, body: Mapping[str, Any], sequence: tuple[bytes, Sequence[bytes]] | None = None
    ) -> bytes:
        start = {} if self._has_begun else {"startTransaction": True}
        self._has_begun = True
        command = bson.encode({**body, **start, **self._fields, BYPASS: True, REPLICATION_DATA: 1, "$db": db})
        sections = b"" if sequence is None else encode_sequence(*sequence)
        frame = op_msg(command, request_id=next_request_id(), sections=sections)
        return response_body(await self._mongod.pool.exchange(frame))

    async def commit(self, write_concern: Mapping[str, Any]) -> None:
        """Commit the transaction; after WriteConcernFailed it is committed, but the write concern was not met."""
        if self._has_begun:
            await self.run("admin", {"commitTransaction": 1, "writeConcern": write_concern})

    async def abort(self) -> None:
        """Abort the transaction, unless it has already ended."""
        if not self._has_begun:
            return
        try:
            # In any term, so without a term check that could fail.
            check_reply(await self._exchange("admin", {"abortTransaction": 1}))
        except CommandError as error:
            if error.code not in _ENDED:
                raise
