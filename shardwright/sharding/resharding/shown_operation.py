"""The entry of a coordinator, donor or recipient in ``$currentOp``, with the fields of MongoDB 6.0."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from shardwright.sharding.resharding.participation import Participation
from shardwright.wire.rawbson import raw_document


def shown_operation(role: str, told: Participation, seconds: float, details: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of one part in an operation.

    Args:
        role: ``Coordinator``, ``Donor`` or ``Recipient``.
        told: the operation.
        seconds: for how long it has been under way.
        details: the fields that only this role has.
    """
    namespace = str(told.namespace)
    command = {
        "reshardCollection": namespace,
        "key": raw_document(told.key.document),
        "unique": False,
        "collation": {"locale": "simple"},
    }
    return {
        "type": "op",
        "desc": f"Resharding{role}Service {told.id}",
        "op": "command",
        "ns": namespace,
        "originatingCommand": command,
        "totalOperationTimeElapsedSecs": Int64(seconds),
        **details,
        "opStatus": "running",
    }
