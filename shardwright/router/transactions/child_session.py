"""Sessions in which a transaction of the router runs on behalf of a client's session."""

from uuid import UUID

import bson
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.session_cache import SessionId


def own_session(lsid: bytes) -> bytes:
    """The raw ``lsid`` of a client's session itself, as servers name it.

    Raises:
        CommandError: the id is malformed.
    """
    return bson.encode(SessionId.read(lsid).to_document())


def child_of_retryable_write(lsid: bytes, number: int, unique: UUID) -> bytes:
    """The raw ``lsid`` for the transaction that executes a retryable write.

    What its statements with a statement id have done is found by the mongods when the write itself is sent again.

    Args:
        lsid: the raw id of the client's session.
        number: the ``txnNumber`` of the write.
        unique: distinguishes several such transactions, for example of several routers.

    Raises:
        CommandError: the id is malformed.
    """
    parent = SessionId.read(lsid).to_document()
    return bson.encode({**parent, "txnNumber": Int64(number), "txnUUID": Binary.from_uuid(unique)})
