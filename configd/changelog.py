"""Writing ``config.changelog`` and ``config.actionlog``."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bson.objectid import ObjectId

from configd.transactions import Commands
from daemon.logs import get_logger
from sharding.catalog.changelog_entry import ChangeLogEntry
from wire.errors import BackendError, CommandError

logger = get_logger("configd.changelog")

_SHARD: Final = "config"


class ChangeLog:
    """Notes changes after they were committed, as MongoDB does: capped collections take no part in transactions.

    Args:
        mongod: runs commands on the primary.
        server: ``host:port`` of this daemon.
    """

    def __init__(self, mongod: Commands, server: str) -> None:
        self._mongod = mongod
        self._server = server

    async def log_change(
        self, what: str, namespace: str, details: Mapping[str, Any], *, client_address: str = ""
    ) -> None:
        """Note a change of the catalog. That it could not be noted does not undo the change: it is logged."""
        await self._insert("changelog", what, namespace, details, client_address)

    async def log_action(self, what: str, details: Mapping[str, Any], *, client_address: str = "") -> None:
        """Note something that was done, such as turning the balancer off."""
        await self._insert("actionlog", what, "", details, client_address)

    async def _insert(
        self, collection: str, what: str, namespace: str, details: Mapping[str, Any], client_address: str
    ) -> None:
        # BSON dates have milliseconds.
        time = datetime.now(UTC).replace(tzinfo=None)
        time = time.replace(microsecond=time.microsecond // 1000 * 1000)
        entry = ChangeLogEntry(
            id=ChangeLogEntry.make_id(self._server, time, ObjectId()),
            server=self._server,
            shard=_SHARD,
            client_address=client_address,
            time=time,
            what=what,
            namespace=namespace,
            details=details,
        )
        command = {"insert": collection, "documents": [entry.to_document()], "writeConcern": {"w": "majority"}}
        try:
            await self._mongod.command("config", command)
        except (CommandError, BackendError) as error:
            logger.warning("Could not note a change", what=what, ns=namespace, error=str(error))
