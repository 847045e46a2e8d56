"""Sessions of the router: those in which it runs a transaction for a client's session, and those for single writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import bson
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.session_cache import SessionId
from shardwright.wire.rawbson import encode_elements


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


class WriteSessions:
    """Sessions for writes that shards must recognize although their clients have not numbered them.

    They are reused, because a mongod remembers each for half an hour.
    """

    def __init__(self) -> None:
        self._free: list[tuple[SessionId, int]] = []

    @contextmanager
    def borrowed(self) -> Iterator[bytes]:
        """Borrow a session for a block; yields the raw elements of a retryable write in it.

        If the block raises, its session is not reused: a shard may still be executing the write, and the next write in
        that session would wait for it.
        """
        session, number = self._free.pop() if self._free else (SessionId(uuid4().bytes), 0)
        yield encode_elements({"lsid": session.to_document(), "txnNumber": Int64(number)})
        self._free.append((session, number + 1))
