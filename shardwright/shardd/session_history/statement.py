"""One executed statement of a retryable write, as sent to the recipient and stored there.

Both forms are the same document, so that neither side decodes what it forwards::

    {_id: {lsid: {id, uid}, txnNumber, stmtId}, op, nss, ui, o2: {_id}, key, image, imageKind, lastUse}

``_id`` has a fixed order of fields and fixed types, so that the statements of one session and number are a range of the
``_id`` index. ``op`` is as in the oplog; ``o2`` is the ``_id`` of an inserted document. ``image`` is the document that
a findAndModify returns: the one before or after an update (``imageKind``), before a delete, or inserted by an upsert.
``key`` is the shard key, where known. ``lastUse`` is the time of the write, and later of its last retry.

A statement that does not fit into one document is divided into pieces. Each has the small fields, ``bytes`` with a part
of ``{o2, image}``, and ``pieces``, the number of pieces. All but the first also have ``_id.piece``, so that they follow
the first one in the index. ``key`` is left out, because the pieces are transferred with every range.

Statement id -1 marks incomplete history, MongoDB's ``kIncompleteHistoryStmtId``. The oplog no longer has all of the
write, or it was a multi-document transaction. It is then unknown which other statements with that transaction number
were executed.

An internal transaction that executes a retryable write has a separate session, ``{id, uid, txnNumber, txnUUID}``,
derived from the write's session and number. Its operations with a ``stmtId`` are statements of the write.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple

import bson
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    INT64,
    OBJECT,
    Span,
    decode_document,
    encode_document,
    find,
    from_elements,
    index,
    raw_document,
    spans,
)

INCOMPLETE_HISTORY: Final = -1
"""The id of the statement that stands for unknown ones."""

INSERT: Final = "i"
UPDATE: Final = "u"
DELETE: Final = "d"
NOOP: Final = "n"
"""Kinds of operations, as in the oplog."""

PRE_IMAGE: Final = "preImage"
POST_IMAGE: Final = "postImage"
"""Kinds of images, as in ``config.image_collection``."""

unpack_int64: Final = Struct("<q").unpack_from
_unpack_int32: Final = Struct("<i").unpack_from

_PIECE_BYTES: Final = BSON_OBJECT_BYTES_MAX // 2
"""Length of the ``bytes`` of a piece; only the last piece may be shorter."""

_LSID_BYTES: Final = 72
_CLIENTS_LSID_BYTES: Final = 30
_ID_BEGINS: Final = b"\x05id\0\x10\0\0\0\x04"
_UID_BEGINS: Final = b"\x05uid\0\x20\0\0\0\0"
NOBODY: Final = _UID_BEGINS + sha256(b"").digest()
"""The ``uid`` that mongod adds to sessions of unauthenticated clients."""


class SessionWrite(NamedTuple):
    """A retryable write or transaction of a session, whose `lsid` is a raw document as in ``config.transactions``."""

    lsid: bytes
    txn_number: int


class Piece(NamedTuple):
    """One of several documents that make up a statement.

    Attributes:
        content: a part of the document ``{o2, image}``.
    """

    number: int
    total: int
    content: bytes


class ExecutedStatement(NamedTuple):
    """One executed statement, or a piece of one; the module's docstring describes its fields.

    Attributes:
        namespace: the collection; empty if unknown.
        collection_uuid: its UUID, 16 bytes; empty if unknown.
        last_use: time of the execution or last retry, in milliseconds since 1970.
        inserted_id: for an insert, a raw document ``{_id}``.
        key: the document's shard key, a raw shard key document, where known.
        image: a raw document.
        image_kind: `PRE_IMAGE` or `POST_IMAGE`.
        piece: set for a piece, which has neither ``inserted_id`` nor ``image``.
    """

    write: SessionWrite
    statement_id: int
    op: str
    namespace: str
    collection_uuid: bytes
    last_use: int
    inserted_id: bytes | None = None
    key: bytes | None = None
    image: bytes | None = None
    image_kind: str | None = None
    piece: Piece | None = None

    @classmethod
    def all_from_bson(cls, documents: Iterable[bytes]) -> "list[ExecutedStatement]":
        """Read statements from documents in the order of their ``_id``.

        If some pieces of a statement have expired, it has neither inserted id nor image.
        """
        read = map(cls.from_bson, documents)
        return [_joined(list(pieces)) for _, pieces in groupby(read, lambda each: (each.write, each.statement_id))]

    @classmethod
    def from_bson(cls, raw: bytes) -> "ExecutedStatement":
        """Read one document: a statement, or a piece of one."""
        fields = index(raw)
        write, statement_id = identity_of(raw, fields)
        document: dict[str, Any] = decode_document(raw)
        return cls(
            write=write,
            statement_id=statement_id,
            op=document["op"],
            namespace=document["nss"],
            collection_uuid=bytes(document["ui"]),
            last_use=unpack_int64(raw, fields[b"lastUse"][2])[0],
            inserted_id=_raw(raw, fields, b"o2"),
            key=_raw(raw, fields, b"key"),
            image=_raw(raw, fields, b"image"),
            image_kind=document.get("imageKind"),
            piece=_piece(document),
        )

    def to_documents(self) -> list[bytes]:
        """Return the document form: several documents if it is too long for one, in the order of their ``_id``."""
        raw = self.to_bson()
        if len(raw) <= BSON_OBJECT_BYTES_MAX:
            return [raw]
        content = encode_document(self._large_fields())
        starts = range(0, len(content), _PIECE_BYTES)
        small = self._replace(key=None, inserted_id=None, image=None)
        return [
            small._replace(piece=Piece(number, len(starts), content[start : start + _PIECE_BYTES])).to_bson()
            for number, start in enumerate(starts)
        ]

    def to_bson(self) -> bytes:
        """Encode as one document, which may be too long to be stored (`to_documents`)."""
        number = 0 if self.piece is None else self.piece.number
        document: dict[str, Any] = {
            "_id": raw_document(_id(self.write, self.statement_id, number)),
            "op": self.op,
            "nss": self.namespace,
            "ui": Binary(self.collection_uuid),
            **self._large_fields(),
        }
        if self.key is not None:
            document["key"] = raw_document(self.key)
        if self.image_kind is not None:
            document["imageKind"] = self.image_kind
        if self.piece is not None:
            document |= {"pieces": self.piece.total, "bytes": Binary(self.piece.content)}
        return encode_document({**document, "lastUse": DatetimeMS(self.last_use)})

    def _large_fields(self) -> dict[str, Any]:
        fields = (("o2", self.inserted_id), ("image", self.image))
        return {name: raw_document(raw) for name, raw in fields if raw is not None}

    @property
    def is_incomplete_history(self) -> bool:
        """Whether it stands for unknown statements."""
        return self.statement_id == INCOMPLETE_HISTORY


def incomplete_history(write: SessionWrite, last_use: int) -> ExecutedStatement:
    """Return the statement that marks a session's history as incomplete."""
    return ExecutedStatement(write, INCOMPLETE_HISTORY, NOOP, "", b"", last_use)


def identity_of(raw: bytes, fields: Mapping[bytes, Span] | None = None) -> tuple[SessionWrite, int]:
    """Return the write and the statement id of a statement's document."""
    span = find(raw, b"_id") if fields is None else fields[b"_id"]
    assert span is not None
    inner = index(raw, span[2])
    lsid, number, statement_id = inner[b"lsid"], inner[b"txnNumber"], inner[b"stmtId"]
    write = SessionWrite(raw[lsid[2] : lsid[3]], unpack_int64(raw, number[2])[0])
    return write, _unpack_int32(raw, statement_id[2])[0]


def range_of(write: SessionWrite) -> dict[str, Any]:
    """Return the query for all stored statements of a write."""
    lsid, number = raw_document(write.lsid), Int64(write.txn_number)
    low, high = ({"lsid": lsid, "txnNumber": number, "stmtId": end} for end in (MinKey(), MaxKey()))
    return {"_id": {"$gte": low, "$lte": high}}


def session_of(raw: bytes, span: Span) -> bytes | None:
    """Return the session of an ``lsid`` in the form of ``config.transactions``, or None for one without history.

    Clients leave out ``uid``, which mongod adds. Internal sessions (``txnNumber`` or ``txnUUID`` in the ``lsid``) run
    transactions; retryable writes are recorded under their parent session.
    """
    _, _, start, end = span
    if end - start == _LSID_BYTES and raw.startswith(_ID_BEGINS, start + 4) and raw.startswith(_UID_BEGINS, start + 29):
        return raw[start:end]  # as mongod writes it
    if end - start == _CLIENTS_LSID_BYTES and raw.startswith(_ID_BEGINS, start + 4):
        return from_elements(raw[start + 4 : end - 1] + NOBODY)  # as drivers write it
    if span[0] != OBJECT:
        return None
    fields = index(raw, start)
    id_span, uid_span = fields.get(b"id"), fields.get(b"uid")
    if id_span is None or id_span[0] != BINARY or len(fields) != (1 if uid_span is None else 2):
        return None
    uid = NOBODY if uid_span is None else raw[uid_span[1] : uid_span[3]]
    return from_elements(raw[id_span[1] : id_span[3]] + uid)


def _id(write: SessionWrite, statement_id: int, piece: int) -> bytes:
    identity = {"lsid": raw_document(write.lsid), "txnNumber": Int64(write.txn_number), "stmtId": statement_id}
    return bson.encode({**identity, "piece": piece} if piece else identity)


def _piece(document: Mapping[str, Any]) -> Piece | None:
    if "pieces" not in document:
        return None
    return Piece(document["_id"].get("piece", 0), document["pieces"], document["bytes"])


def _joined(read: list[ExecutedStatement]) -> ExecutedStatement:
    """Join the documents with one statement id to a statement.

    If the image was lost before a later migration, a single document has replaced the first piece. The other pieces are
    then ignored.
    """
    first = read[0]
    if first.piece is None:
        return first
    pieces = [each.piece for each in read[: first.piece.total] if each.piece is not None]
    whole = first._replace(piece=None)
    if [each.number for each in pieces] != [*range(first.piece.total)]:
        return whole._replace(image_kind=None)
    content = b"".join(each.content for each in pieces)
    fields = index(content)
    return whole._replace(inserted_id=_raw(content, fields, b"o2"), image=_raw(content, fields, b"image"))


def _raw(raw: bytes, fields: Mapping[bytes, Span], name: bytes) -> bytes | None:
    span = fields.get(name)
    return None if span is None else raw[span[2] : span[3]]


_PARENT_FIELDS: Final = (b"id", b"uid")
_FIELDS: Final = {*_PARENT_FIELDS, b"txnNumber", b"txnUUID"}


class ChildTransaction(NamedTuple):
    """An internal transaction on behalf of a retryable write.

    Attributes:
        own: its session and transaction number.
        write: the session and the number of the write.
    """

    own: SessionWrite
    write: SessionWrite

    @classmethod
    def read(cls, raw: bytes, lsid: Span, number: int) -> "ChildTransaction | None":
        """Parse the transaction's ``lsid``, as mongod writes it; None if this is another kind of session."""
        if lsid[0] != OBJECT:
            return None
        fields = index(raw, lsid[2])
        if fields.keys() != _FIELDS or fields[b"txnNumber"][0] != INT64:
            return None
        parent = from_elements(b"".join(raw[fields[name][1] : fields[name][3]] for name in _PARENT_FIELDS))
        write = SessionWrite(parent, unpack_int64(raw, fields[b"txnNumber"][2])[0])
        return cls(SessionWrite(raw[lsid[2] : lsid[3]], number), write)


def numbered_operations(raw: bytes, fields: Mapping[bytes, Span]) -> Iterator[tuple[bytes, dict[bytes, Span]]]:
    """Yield the operations in an ``applyOps`` entry that have a statement id, each with the spans of its elements."""
    operations = find(raw, b"applyOps", fields[b"o"][2])
    if operations is None or operations[0] != ARRAY:
        return
    for _, span in spans(raw, operations[2]):
        operation = raw[span[2] : span[3]]
        found = index(operation)
        if b"stmtId" in found:
            yield operation, found
