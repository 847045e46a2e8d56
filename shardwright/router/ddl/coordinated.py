"""The ``_shardsvr`` commands by which a router has the primary shard of a database carry out DDL."""

from typing import Any, Final

from shardwright.wire.rawbson import encode_elements, from_elements, spans
from shardwright.wire.request import Request

MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}
"""The write concern of DDL, whatever the client's."""

_GENERIC_ARGUMENTS: Final = frozenset(
    {
        b"$clusterTime",
        b"$db",
        b"$readPreference",
        b"apiDeprecationErrors",
        b"apiStrict",
        b"apiVersion",
        b"lsid",
        b"maxTimeMS",
        b"mayBypassWriteBlocking",
        b"readConcern",
        b"txnNumber",
        b"writeConcern",
    }
)
"""Arguments that say how the client's command is run; the shard's command has its own, or is sent it in any case."""


def coordinated_command(request: Request, name: str) -> bytes:
    """The body of a command with the same arguments as the client's, but another name."""
    elements = []
    for position, (field, (kind, _, value_start, value_end)) in enumerate(spans(request.body)):
        if position == 0:
            field = name.encode()
        elif field in _GENERIC_ARGUMENTS:
            continue
        elements.append(bytes((kind,)) + field + b"\0" + request.body[value_start:value_end])
    return from_elements(b"".join(elements) + encode_elements({"writeConcern": MAJORITY, "$db": request.db}))


def command_body(db: str, command: dict[str, Any]) -> bytes:
    """The body of a ``_shardsvr`` command whose arguments are not just the client's."""
    return from_elements(encode_elements({**command, "writeConcern": MAJORITY, "$db": db}))
