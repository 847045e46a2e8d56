"""``$mergeCursors``: how a mongod is made to read the cursors that are open on other shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.wire.rawbson import ARRAY, OBJECT, array_of_documents, element, encode_elements, from_elements


@dataclass(frozen=True, slots=True)
class Remote:
    """An open cursor for a mongod to read.

    Attributes:
        shard_id: the shard that has it.
        address: ``host:port`` of the member that has it.
        cursor: the raw document ``cursor`` of the reply that opened it; the documents of its batch come first.
    """

    shard_id: str
    address: str
    cursor: bytes

    @property
    def raw(self) -> bytes:
        """Its entry in ``remotes``."""
        response = element(b"cursor", OBJECT, self.cursor) + encode_elements({"ok": 1.0})
        return from_elements(
            encode_elements({"shardId": self.shard_id, "hostAndPort": self.address})
            + element(b"cursorResponse", OBJECT, from_elements(response))
        )


_NO_USER: Final = Binary(sha256(b"").digest())
"""The ``uid`` of sessions on connections that are not authenticated."""


def merge_cursors(
    remotes: Sequence[Remote],
    namespace: str,
    sort: Mapping[str, int] | None = None,
    session: Mapping[str, Any] | None = None,
    transaction: int | None = None,
) -> bytes:
    """The raw stage that reads cursors.

    Args:
        remotes: the cursors.
        namespace: ``db.collection`` of the aggregation.
        sort: the order in which documents are merged, by their ``$sortKey``; None for any.
        session: the ``lsid`` with which the cursors were opened; None if they were in no session.
        transaction: the number of the transaction in which they were opened; None if they were in none.
    """
    specification = (
        encode_elements({} if session is None else {"lsid": {"id": session["id"], "uid": session.get("uid", _NO_USER)}})
        + encode_elements({} if transaction is None else {"txnNumber": Int64(transaction), "autocommit": False})
        + encode_elements({} if sort is None else {"sort": dict(sort)})
        + encode_elements({"compareWholeSortKey": False})
        + element(b"remotes", ARRAY, array_of_documents([remote.raw for remote in remotes]))
        + encode_elements({"nss": namespace, "allowPartialResults": False})
    )
    return from_elements(element(b"$mergeCursors", OBJECT, from_elements(specification)))
