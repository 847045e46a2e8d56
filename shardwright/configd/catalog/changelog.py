"""Writing ``config.changelog`` and ``config.actionlog``."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.configd.catalog.transactions import MAJORITY, Commands
from shardwright.sharding.catalog.changelog_entry import ChangeLogEntry
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.changelog")

_SHARD: Final = "config"


class ChangeLog:
    """Writer of changes after their commit, as in MongoDB, because transactions cannot write to capped collections.

    ``server`` is ``host:port`` of this daemon.
    """

    def __init__(self, mongod: Commands, server: str) -> None:
        self._mongod = mongod
        self._server = server

    async def log_changes(
        self, what: str, namespace: str, details: Sequence[Mapping[str, Any]], *, client_address: str = ""
    ) -> None:
        """Record changes to the catalog, with one entry for each.

        A failure is only logged, because the changes have already been made.
        """
        await self._insert("changelog", [self._entry(what, namespace, each, client_address) for each in details])

    async def log_action(self, what: str, details: Mapping[str, Any], *, client_address: str = "") -> None:
        """Record an action, such as turning the balancer off."""
        await self._insert("actionlog", [self._entry(what, "", details, client_address)])

    def _entry(self, what: str, namespace: str, details: Mapping[str, Any], client_address: str) -> ChangeLogEntry:
        # BSON dates have milliseconds.
        time = datetime.now(UTC).replace(tzinfo=None)
        time = time.replace(microsecond=time.microsecond // 1000 * 1000)
        return ChangeLogEntry(
            id=ChangeLogEntry.make_id(self._server, time, ObjectId()),
            server=self._server,
            shard=_SHARD,
            client_address=client_address,
            time=time,
            what=what,
            namespace=namespace,
            details=details,
        )

    async def _insert(self, collection: str, entries: Sequence[ChangeLogEntry]) -> None:
        documents = [entry.to_document() for entry in entries]
        try:
            await self._mongod.command(
                "config", {"insert": collection, "documents": documents, "writeConcern": MAJORITY}
            )
        except (CommandError, BackendError) as error:
            logger.warning(
                "Could not write to the changelog",
                what=entries[0].what,
                namespace=entries[0].namespace,
                error=str(error),
            )
