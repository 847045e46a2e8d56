"""Which transaction: a session and a number."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import bson
from bson.int64 import Int64

from shardwright.shardd.transactions.session_keys import session_key
from shardwright.sharding.operation_session import LSID, read_uuid
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import Span, index


@dataclass(frozen=True, slots=True)
class TransactionId:
    """A transaction of a session, which may be a child session.

    Attributes:
        session: see `session_key`.
        number: the transaction's number in the session.
    """

    session: bytes
    number: int

    @classmethod
    def read(cls, raw: bytes, lsid: Span, number: int) -> Self:
        """The transaction in the fields of a request.

        Args:
            raw: the document with the ``lsid``.
            lsid: its span there.
            number: the ``txnNumber``.

        Raises:
            CommandError: BadValue, TypeMismatch, InvalidUUID, the ``lsid`` is malformed.
        """
        session = session_key(raw, lsid)
        if session is None:
            raise CommandError(ErrorCode.BadValue, f"'{LSID}' is not the id of a session")
        read_uuid(session, index(session)[b"id"], f"{LSID}.id")
        return cls(session, number)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The transaction of a document with an ``lsid`` and a ``txnNumber``.

        Raises:
            CommandError: as `read`.
        """
        raw = bson.encode(document)
        return cls.read(raw, index(raw)[b"lsid"], int(document["txnNumber"]))

    def to_document(self) -> dict[str, Any]:
        """The ``lsid`` and ``txnNumber`` of a document or command."""
        return {"lsid": bson.decode(self.session), "txnNumber": Int64(self.number)}

    @property
    def session_id(self) -> str:
        """The session's UUID, for the log."""
        return str(bson.decode(self.session)["id"].as_uuid())
