"""A part in a resharding operation as ``currentOp`` shows it, with MongoDB's fields."""

from collections.abc import Mapping
from typing import Any

from shardwright.shardd.resharding.local_documents import LocalPart
from shardwright.wire.rawbson import raw_document


def resharding_operation(role: str, part: LocalPart, address: str, details: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of one part.

    Args:
        role: ``Donor`` or ``Recipient``.
        part: the part.
        address: ``host:port`` of this daemon.
        details: the fields that only this role has.
    """
    participation = part.participation
    namespace = str(participation.namespace)
    command = {
        "reshardCollection": namespace,
        "key": raw_document(participation.key.document),
        "unique": False,
        "collation": {"locale": "simple"},
    }
    return {
        "type": "op",
        "host": address,
        "desc": f"Resharding{role}Service {participation.id}",
        "op": "command",
        "ns": namespace,
        "originatingCommand": command,
        **details,
        "opStatus": "running",
    }
