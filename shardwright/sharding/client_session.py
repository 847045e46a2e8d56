"""How a router tells a shard in whose session a client runs a write that the router sends in a session of its own.

Statements for all shards that have no number are sent in a session of the router, with numbers, so that none is
executed twice beside a move. The mongod knows that session only. A shard that lists `CLIENT_SESSION` among the
``extensions`` of its hello is sent the client's ``lsid`` in this field, so that killing the client's session ends the
write, no matter which router is asked, and ``currentOp`` shows it there.
"""

from typing import Final

from shardwright.wire.rawbson import OBJECT, element

CLIENT_SESSION: Final = b"clientSession"


def client_session_element(lsid: bytes) -> bytes:
    """The field for a write of a session, given by its raw ``lsid`` with the digest of its user."""
    return element(CLIENT_SESSION, OBJECT, lsid)
