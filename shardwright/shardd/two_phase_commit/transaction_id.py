"""Which transaction: a session and a number."""

from dataclasses import dataclass
from typing import Any, Final, Self

import bson
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.operation_session import LSID, check_lsid, read_uuid
from shardwright.sharding.session_cache import NO_USER
from shardwright.wire import rawbson
from shardwright.wire.field_errors import wrong_type
from shardwright.wire.rawbson import index
from shardwright.wire.type_names import type_name

_TXN_UUID: Final = b"txnUUID"
_TXN_NUMBER: Final = b"txnNumber"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """A transaction of a session, which may be a child session.

    Attributes:
        session: the ``lsid`` as BSON, always with a ``uid`` and with its fields in MongoDB's order, so that equal
            sessions have equal bytes.
        number: the transaction's number in the session.
    """

    session: bytes
    number: int

    @classmethod
    def read(cls, lsid: bytes, number: int) -> Self:
        """The transaction in the fields of a request.

        Args:
            lsid: the raw ``lsid``.
            number: the ``txnNumber``.

        Raises:
            CommandError: the ``lsid`` is malformed.
        """
        fields = index(lsid)
        child: dict[str, Any] = {}
        if _TXN_UUID in fields:
            child = _child_fields(lsid, fields)
            fields = {name: span for name, span in fields.items() if name not in (_TXN_UUID, _TXN_NUMBER)}
        identifier, uid = check_lsid(lsid, fields)
        parent = {"id": Binary(identifier, 4), "uid": Binary(uid or NO_USER)}
        return cls(bson.encode({**parent, **child}), number)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """The transaction of a document with an ``lsid`` and a ``txnNumber``.

        Raises:
            CommandError: the ``lsid`` is malformed.
        """
        return cls.read(bson.encode(document["lsid"]), int(document["txnNumber"]))

    def to_document(self) -> dict[str, Any]:
        """The ``lsid`` and ``txnNumber`` of a document or command."""
        return {"lsid": bson.decode(self.session), "txnNumber": Int64(self.number)}

    @property
    def session_id(self) -> str:
        """The session's UUID, for the log."""
        return str(bson.decode(self.session)["id"].as_uuid())


def _child_fields(lsid: bytes, fields: dict[bytes, rawbson.Span]) -> dict[str, Any]:
    """The fields of a child session, on whose behalf of its parent servers run transactions.

    Raises:
        CommandError: TypeMismatch, InvalidUUID.
    """
    span = fields[_TXN_UUID]
    if span[0] != rawbson.BINARY:
        raise wrong_type(f"{LSID}.txnUUID", span[0], type_name(rawbson.BINARY))
    child = {"txnUUID": Binary(read_uuid(lsid, span, f"{LSID}.txnUUID"), 4)}
    number = fields.get(_TXN_NUMBER)
    if number is None:
        return child
    if number[0] != rawbson.INT64:
        raise wrong_type(f"{LSID}.txnNumber", number[0], type_name(rawbson.INT64))
    return {"txnNumber": Int64(rawbson.decode_value(lsid, number)), **child}
