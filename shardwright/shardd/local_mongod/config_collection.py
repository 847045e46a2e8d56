"""Collections of ``config`` that are private to one shard: what the next primary has to know of unfinished work."""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.transport.cursor import DecodedCursor

MAJORITY: Final[Mapping[str, Any]] = {"w": "majority", "wtimeout": 60_000}
"""For everything that must not be lost, with MongoDB's time limit for such writes between servers."""

LOCAL_WRITE_CONCERN: Final[Mapping[str, Any]] = {"w": 1}
"""Does not wait for other members; mongod's default, the majority, would cost a flush of the journal each time."""


_CONFIG: Final = "config"


class ConfigCollection:
    """One such collection, whose documents are found by their ``_id``. Writes wait for a majority by default.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.

    Args:
        mongod: the local mongod.
        name: the collection's name.
    """

    def __init__(self, mongod: LocalMongod, name: str) -> None:
        self._mongod = mongod
        self._name = name

    async def all(self, *, may_be_secondary: bool = False) -> list[dict[str, Any]]:
        """All documents; with ``may_be_secondary``, those that the local mongod has even if it is not primary."""
        command: dict[str, Any] = {"find": self._name}
        if may_be_secondary:
            command["$readPreference"] = {"mode": "nearest"}
        return await self._read(command)

    async def all_at(self, time: Timestamp, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The documents that matched a query at a cluster time, on the local mongod whatever its role."""
        concern = {"level": "snapshot", "atClusterTime": time}
        preference = {"mode": "nearest"}
        return await self._read(
            {"find": self._name, "filter": query, "readConcern": concern, "$readPreference": preference}
        )

    async def _read(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        return await DecodedCursor(self._mongod.command, _CONFIG, command).all_documents()

    async def get(self, identity: object) -> dict[str, Any] | None:
        """The document with an ``_id``, None if there is none."""
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
            document: the document.
            write_concern: which members must have it.
            gossip: the ``$clusterTime`` that the write must come after.
        """
        update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
        command = {"update": self._name, "updates": [update], "writeConcern": write_concern}
        await self._mongod.write(_CONFIG, {**command, **(gossip or {})})

    async def change(self, identity: object, fields: Mapping[str, Any]) -> None:
        """Set fields of the document with an ``_id``, if it exists.

        A document may be nested as deep as mongod allows, or deeper where it embeds one of a client: then it can be
        stored, and single fields set, but not replaced.
        """
        update = {"q": {"_id": identity}, "u": {"$set": fields}}
        await self._mongod.write(_CONFIG, {"update": self._name, "updates": [update], "writeConcern": MAJORITY})

    async def remove(self, identity: object, *, write_concern: Mapping[str, Any] = MAJORITY) -> None:
        """Remove the document with an ``_id``, if it exists."""
        delete = {"q": {"_id": identity}, "limit": 1}
        await self._mongod.write(_CONFIG, {"delete": self._name, "deletes": [delete], "writeConcern": write_concern})
