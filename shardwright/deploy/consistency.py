"""``shardwright check``: inconsistencies between the catalog and the shards."""

from collections.abc import Mapping, Sequence
from typing import Any

from bson.json_util import dumps
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.errors import DeployError, reason


def inconsistencies(uri: str, log_in: Mapping[str, Any], *, indexes: bool) -> list[dict[str, Any]]:
    """Run ``checkMetadataConsistency`` on a cluster.

    Args:
        indexes: whether to compare the indexes of the shards too."""
    try:
        with MongoClient[dict[str, Any]](uri, **log_in) as client:
            reply = client.admin.command("checkMetadataConsistency", 1, checkIndexes=indexes)
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return found


def inconsistencies_text(found: Sequence[dict[str, Any]]) -> str:
    """Format the inconsistencies, a line for each."""
    if not found:
        return "no inconsistencies"
    lines = [f"{len(found)} {'inconsistency' if len(found) == 1 else 'inconsistencies'}"]
    return "\n".join([*lines, *map(_inconsistency_text, found)])


def _inconsistency_text(found: dict[str, Any]) -> str:
    details = {name: value for name, value in found["details"].items() if name != "namespace"}
    return f"  {found['details']['namespace']}: {found['type']}: {found['description']} {dumps(details)}"
