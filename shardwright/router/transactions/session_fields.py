"""The session and the transaction that a request names, in raw form."""

from typing import Final, NamedTuple

from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.sharding.session_cache import NO_USER
from shardwright.wire.rawbson import (
    BOOL,
    EMPTY_DOCUMENT,
    INT64,
    OBJECT,
    element,
    encode_elements,
    index,
)
from shardwright.wire.request import Request

READ_CONCERN: Final = b"readConcern"
COORDINATOR: Final = b"coordinator"
RECOVERY_TOKEN: Final = b"recoveryToken"

STARTS_ELEMENT: Final = encode_elements({"startTransaction": True})
AUTOCOMMIT_ELEMENT: Final = element(AUTOCOMMIT, BOOL, b"\0")
COORDINATOR_ELEMENT: Final = encode_elements({"coordinator": True})
_LSID: Final = b"lsid"
_BINARY_AT: Final = 5  # behind the length and the subtype of binary data

OF_TRANSACTIONS: Final = frozenset(
    {
        *(_LSID, TXN_NUMBER, AUTOCOMMIT, START_TRANSACTION, READ_CONCERN, COORDINATOR, RECOVERY_TOKEN, b"writeConcern"),
        CLUSTER_TIME,
    }
)
"""The fields of a request in a transaction that are different for each shard, or not for shards.

The router gossips its current time in place of the client's, because the snapshot may have a later time than that.
"""


class TransactionFields(NamedTuple):
    """What a request says about its transaction; its fields have been checked.

    Attributes:
        lsid: the raw session id.
        session: identifies the session (`SessionId.key`): the same UUID may be used by several users.
        number: ``txnNumber``.
        starts: whether the request is the first of its transaction.
        read_concern: raw; empty if none is given.
    """

    lsid: bytes
    session: bytes
    number: int
    starts: bool
    read_concern: bytes = EMPTY_DOCUMENT

    @classmethod
    def of(cls, request: Request) -> "TransactionFields":
        """Read them from a request that has ``lsid`` and ``txnNumber``.

        Raises:
            CommandError: TypeMismatch, ``readConcern`` is not a document.
        """
        lsid = request.raw_object(_LSID)
        assert lsid is not None
        fields = index(lsid)
        identifier, uid = fields[b"id"], fields.get(b"uid")
        user = NO_USER if uid is None else lsid[uid[2] + _BINARY_AT : uid[3]]
        return cls(
            lsid,
            lsid[identifier[2] + _BINARY_AT : identifier[3]] + user,
            int(request.get(TXN_NUMBER)),
            START_TRANSACTION in request.fields,
            request.raw_object(READ_CONCERN) or EMPTY_DOCUMENT,
        )


def session_elements(lsid: bytes, number: int) -> bytes:
    """The elements that every request in a transaction has.

    Args:
        lsid: the raw session id.
        number: of the transaction.
    """
    return (
        element(_LSID, OBJECT, lsid)
        + element(TXN_NUMBER, INT64, number.to_bytes(8, "little", signed=True))
        + AUTOCOMMIT_ELEMENT
    )


def read_concern_element(read_concern: bytes) -> bytes:
    """The element ``readConcern``, given its raw value."""
    return element(READ_CONCERN, OBJECT, read_concern)
