"""Transactions that execute a retryable write, and what they say about it. Pure.

Such a transaction runs in a session of its own, ``{id, uid, txnNumber, txnUUID}``, derived from that of the write and
the write's number. Its operations with a ``stmtId`` are statements of the write.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from shardwright.shardd.session_history.statement import SessionWrite, unpack_int64
from shardwright.wire.rawbson import ARRAY, INT64, OBJECT, Span, find, from_elements, index, spans

_PARENT_FIELDS: Final = (b"id", b"uid")
_FIELDS: Final = {*_PARENT_FIELDS, b"txnNumber", b"txnUUID"}


class ChildTransaction(NamedTuple):
    """A transaction on behalf of a retryable write.

    Attributes:
        own: its session and transaction number.
        write: the session and the number of the write.
    """

    own: SessionWrite
    write: SessionWrite

    @classmethod
    def read(cls, raw: bytes, lsid: Span, number: int) -> "ChildTransaction | None":
        """From its ``lsid``, as mongod writes it, and its own transaction number; None if this is no such session."""
        if lsid[0] != OBJECT:
            return None
        fields = index(raw, lsid[2])
        if fields.keys() != _FIELDS or fields[b"txnNumber"][0] != INT64:
            return None
        parent = from_elements(b"".join(raw[fields[name][1] : fields[name][3]] for name in _PARENT_FIELDS))
        write = SessionWrite(parent, unpack_int64(raw, fields[b"txnNumber"][2])[0])
        return cls(SessionWrite(raw[lsid[2] : lsid[3]], number), write)


def numbered_operations(raw: bytes, fields: Mapping[bytes, Span]) -> Iterator[tuple[bytes, dict[bytes, Span]]]:
    """The operations in an ``applyOps`` entry that are statements with an id, each with where its elements are.

    Args:
        raw: an oplog entry.
        fields: where its elements are.
    """
    operations = find(raw, b"applyOps", fields[b"o"][2])
    if operations is None or operations[0] != ARRAY:
        return
    for _, span in spans(raw, operations[2]):
        operation = raw[span[2] : span[3]]
        found = index(operation)
        if b"stmtId" in found:
            yield operation, found
