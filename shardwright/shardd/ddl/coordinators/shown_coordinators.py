"""A coordinator's entry in ``$currentOp``."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.wire.rawbson import raw_document

_NAMES: Final[Mapping[str, str]] = {"createCollection_V2": "CreateCollection", "collMod_V2": "CollMod"}
"""What MongoDB calls the coordinators whose types are not just their names."""


def coordinator_operation(coordinator: Coordinator) -> dict[str, Any]:
    """A coordinator in the form in which mongod reports its operations."""
    kind = coordinator.operation_type
    name = _NAMES.get(kind) or kind[0].upper() + kind[1:]
    operation = {
        "type": "op",
        "desc": f"{name}Coordinator",
        "op": "command",
        "ns": coordinator.id["namespace"],
        "command": {each: value for each, value in coordinator.arguments.items() if each != "session"},
        "active": True,
    }
    if coordinator.opid is not None:
        operation["opid"] = coordinator.opid
    if coordinator.lsid is not None:
        operation["lsid"] = raw_document(coordinator.lsid)
    return operation if coordinator.phase is None else {**operation, "currentPhase": coordinator.phase}
