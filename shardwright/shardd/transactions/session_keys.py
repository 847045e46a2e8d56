"""The sessions of transactions, as keys of the table of open ones. Pure."""

from bson.int64 import Int64

from shardwright.shardd.session_history.statement import NOBODY, session_of
from shardwright.sharding.operation_session import TXN_NUMBER
from shardwright.wire.rawbson import BINARY, OBJECT, Span, encode_elements, from_elements, index
from shardwright.wire.request import Request

_CHILD_FIELDS = (b"txnNumber", b"txnUUID")


def session_key(raw: bytes, span: Span) -> bytes | None:
    """The session that an ``lsid`` names: the raw document that ``config.transactions`` has as ``_id``.

    A transaction that runs on behalf of a session has a child session, which this distinguishes from its parent.

    Args:
        raw: the document that contains it.
        span: its span there.

    Returns:
        None if it is malformed, which mongod reports.
    """
    session = session_of(raw, span)
    if session is not None:
        return session
    fields = index(raw, span[2]) if span[0] == OBJECT else {}
    identity, uid = fields.get(b"id"), fields.get(b"uid")
    if identity is None or identity[0] != BINARY:
        return None
    user = NOBODY if uid is None else raw[uid[1] : uid[3]]
    child = b"".join(raw[fields[name][1] : fields[name][3]] for name in _CHILD_FIELDS if name in fields)
    return from_elements(raw[identity[1] : identity[3]] + user + child)


def retryable_write_of(session: bytes) -> bytes | None:
    """What the child sessions of one retryable write have in common; None for other sessions.

    Args:
        session: a key (`session_key`).
    """
    if b"txnUUID" not in session:
        return None  # nearly every session
    fields = index(session)
    if b"txnNumber" not in fields or b"txnUUID" not in fields:
        return None
    return session[4 : fields[b"txnUUID"][1]]


def retryable_write(request: Request) -> bytes | None:
    """What the child sessions of a retryable write would have in common (`retryable_write_of`); None if it has none."""
    lsid = request.fields.get(b"lsid")
    session = None if lsid is None else session_of(request.body, lsid)
    if session is None:
        return None
    return session[4:-1] + encode_elements({TXN_NUMBER.decode(): Int64(request.get(TXN_NUMBER))})
