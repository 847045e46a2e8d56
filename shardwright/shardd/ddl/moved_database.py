"""What the coordinator of ``movePrimary`` needs of the room that copies databases."""

from collections.abc import Container, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from uuid import UUID

from bson.timestamp import Timestamp


class MovingCollection(Protocol):
    """An unsharded collection, as it is on this shard."""

    @property
    def name(self) -> str:
        """Its name without the database."""

    @property
    def uuid(self) -> UUID:
        """Its UUID on this shard."""

    def to_document(self) -> dict[str, Any]:
        """Its UUID, options and indexes."""


class MovingDatabase(Protocol):
    """What moves of a database, as it is at a time."""

    @property
    def collections(self) -> Mapping[UUID, MovingCollection]:
        """The unsharded collections, by UUID."""

    @property
    def views(self) -> Mapping[str, bytes]:
        """The documents of ``system.views``, raw, by the namespace of the view."""


class MoveSource(Protocol):
    """Hands out a database to the recipient."""

    @property
    def has_changed(self) -> bool:
        """Whether a collection or view may have been created, dropped or altered since `listed` was last called."""

    @property
    def documents_cloned(self) -> int:
        """Number of documents handed out in clones."""

    @property
    def bytes_cloned(self) -> int:
        """Their size in bytes."""

    @property
    def queued_ids(self) -> int:
        """Number of changed documents waiting to be handed out."""

    async def listed(self) -> MovingDatabase:
        """List what moves at present."""

    def add(self, uuid: UUID) -> None:
        """Begin to hand out one of the collections that `listed` last returned."""

    def remove(self, uuid: UUID) -> None:
        """Forget a collection."""

    async def wait_followed(self, time: Timestamp) -> None:
        """Return when all changes up to a time have been queued."""

    def copy_of(self, uuid: UUID) -> UUID:
        """The UUID of a collection's copy."""


class DatabaseMoves(Protocol):
    """This shard's moves of databases to other shards."""

    def serving(self, db: str, sharded: Container[str], move_id: UUID) -> AbstractAsyncContextManager[MoveSource]:
        """Hand out a database in the block."""
