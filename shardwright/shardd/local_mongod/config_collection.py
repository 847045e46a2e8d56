"""Collections of ``config`` that are private to one shard and keep unfinished work for the next primary."""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.transport.cursor import DecodedCursor

MAJORITY: Final[Mapping[str, Any]] = {"w": "majority", "wtimeout": 60_000}
"""Write concern for data that must not be lost, with MongoDB's time limit for such writes between servers."""

LOCAL_WRITE_CONCERN: Final[Mapping[str, Any]] = {"w": 1}
"""Write concern that does not wait; mongod's default, the majority, would cost a journal flush each time."""


_CONFIG: Final = "config"


class ConfigCollection:
    """One such collection, keyed by ``_id``. Writes wait for a majority by default.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod, name: str) -> None:
        self._mongod = mongod
        self._name = name

    async def all(self, *, may_be_secondary: bool = False) -> list[dict[str, Any]]:
        """Return all documents; with ``may_be_secondary`` also if the local mongod is not primary."""
        command: dict[str, Any] = {"find": self._name}
        if may_be_secondary:
            command["$readPreference"] = {"mode": "nearest"}
        return await self._read(command)

    async def all_at(self, time: Timestamp, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the documents that matched a query at a cluster time, from the local mongod in any role."""
        concern = {"level": "snapshot", "atClusterTime": time}
        preference = {"mode": "nearest"}
        return await self._read(
            {"find": self._name, "filter": query, "readConcern": concern, "$readPreference": preference}
        )

    async def _read(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        return await DecodedCursor(self._mongod.command, _CONFIG, command).all_documents()

    async def get(self, identity: object) -> dict[str, Any] | None:
        """Return the document with an ``_id``, or None."""
        find = {"find": self._name, "filter": {"_id": identity}, "singleBatch": True}
        found: list[dict[str, Any]] = (await self._mongod.command(_CONFIG, find))["cursor"]["firstBatch"]
        return found[0] if found else None

    async def save(
        self,
        document: Mapping[str, Any],
        *,
        write_concern: Mapping[str, Any] = MAJORITY,
        gossip: Mapping[str, Any] | None = None,
    ) -> None:
        """Insert a document, or replace the one with its ``_id``.

        Args:
            gossip: the ``$clusterTime`` that the write must come after.
        """
        update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
        command = {"update": self._name, "updates": [update], "writeConcern": write_concern}
        await self._mongod.write(_CONFIG, {**command, **(gossip or {})})

    async def change(self, identity: object, fields: Mapping[str, Any]) -> None:
        """Set fields of the document with an ``_id``, if it exists.

        A document that embeds a client's document may exceed mongod's nesting limit. It can be stored, and single
        fields set, but it cannot be replaced.
        """
        update = {"q": {"_id": identity}, "u": {"$set": fields}}
        await self._mongod.write(_CONFIG, {"update": self._name, "updates": [update], "writeConcern": MAJORITY})

    async def remove(self, identity: object, *, write_concern: Mapping[str, Any] = MAJORITY) -> None:
        """Remove the document with an ``_id``, if it exists."""
        delete = {"q": {"_id": identity}, "limit": 1}
        await self._mongod.write(_CONFIG, {"delete": self._name, "deletes": [delete], "writeConcern": write_concern})
