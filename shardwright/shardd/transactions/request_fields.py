"""The fields by which a command belongs to a transaction. Pure."""

from typing import Any, Final

from bson.int64 import Int64

from shardwright.shardd.transactions.session_keys import session_key
from shardwright.sharding.commit_protocol import COORDINATED_BY, COORDINATOR
from shardwright.sharding.operation_session import TXN_NUMBER
from shardwright.wire.request import Request

_LSID: Final = b"lsid"
_NOT_FOR_MONGOD: Final = frozenset({COORDINATED_BY, COORDINATOR, b"apiVersion", b"apiStrict", b"apiDeprecationErrors"})
"""Fields of the commit protocol, which mongod does not know; and the parameters of the Stable API.

mongod requires of all commands of a transaction the parameters of its first one. The coordinator of the commit and this
daemon do not know them, and a mongod that has been restarted has forgotten those of a prepared transaction.
"""


def transaction_of(request: Request) -> tuple[bytes, int] | None:
    """The session (`session_key`) and number of a command; None if they are missing or malformed."""
    fields = request.fields
    number = request.get(TXN_NUMBER)
    session = session_key(request.body, fields[_LSID]) if _LSID in fields else None
    return None if session is None or not isinstance(number, Int64) else (session, number)


def session_fields(request: Request) -> dict[str, Any]:
    """The fields with which the daemon's own commands are part of the transaction of a request."""
    return {"lsid": request.get(_LSID), "txnNumber": request.get(TXN_NUMBER), "autocommit": False}


def as_for_mongod(request: Request) -> Request:
    """A command of a transaction without the fields that mongod must not see; the same one if it has none of them."""
    return request.without(_NOT_FOR_MONGOD)
