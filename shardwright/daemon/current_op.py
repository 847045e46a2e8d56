"""The pipeline that ``currentOp`` runs on mongod, as in mongod's own command of that name."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_GENERIC: Final = frozenset({"lsid", "maxTimeMS", "comment", "apiVersion", "apiStrict", "apiDeprecationErrors"})

_ON_ANY_MEMBER: Final = {"mode": "nearest"}
"""Secondaries show their operations too."""


def find_operations(arguments: Mapping[str, Any], added: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return an ``aggregate`` on ``admin`` that finds the operations requested by a ``currentOp``.

    They are returned in one document, so that all of them are in the first batch. More than 16 MB of them are an error,
    as in MongoDB.

    Args:
        arguments: the whole command. Its fields are conditions, except those common to all commands.
        added: stages that add further operations before these conditions.
    """
    stage = {
        "allUsers": not arguments.get("$ownOps"),
        "idleConnections": bool(arguments.get("$all")),
        "truncateOps": True,
    }
    conditions = {
        name: value
        for position, (name, value) in enumerate(arguments.items())
        if position and not name.startswith("$") and name not in _GENERIC
    }
    together = {"_id": None, "inprog": {"$push": "$$ROOT"}}
    pipeline = [{"$currentOp": stage}, *added, {"$match": conditions}, {"$group": together}]
    return {"aggregate": 1, "pipeline": pipeline, "cursor": {}, "$readPreference": _ON_ANY_MEMBER}


def found_operations(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations in the reply to `find_operations`."""
    return [operation for group in reply["cursor"]["firstBatch"] for operation in group["inprog"]]
