"""What the donor of a database hands out of one collection: its clone, then changes to it.

A cursor may end because the collection is gone, which the coordinator finds out too; its copy is then dropped. Or it
may have been killed, by ``killAllSessions`` for example, and then the copy would lack documents. mongod's errors do not
distinguish these cases, so whether the collection is still there is looked up.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.migration.database.collection_scan import CollectionScan
from shardwright.shardd.migration.source.changed_documents import ChangedDocuments
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_MAY_BE_GONE: Final = frozenset(
    {ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch, ErrorCode.QueryPlanKilled, ErrorCode.CursorNotFound}
)


@dataclass(frozen=True, slots=True)
class CollectionChanges:
    """Changes to one collection; deletions are to be applied first.

    Attributes:
        uuid: its UUID on the donor.
        deleted: raw ``{_id}`` of documents that no longer exist.
        reload: current versions of changed documents, raw, in the order in which they were first changed.
    """

    uuid: UUID
    deleted: list[bytes]
    reload: list[bytes]


class CollectionSource:
    """Hands out one collection.

    Args:
        mongod: the donor's local mongod.
        namespace: the collection.
        uuid: its UUID.
        nursery: for the clone.

    Attributes:
        scan: reads the clone.
    """

    def __init__(self, mongod: LocalMongod, namespace: Namespace, uuid: UUID, nursery: trio.Nursery) -> None:
        self.scan = CollectionScan(mongod, namespace, uuid)
        self._mongod = mongod
        self._namespace = namespace
        self._uuid = uuid
        self._nursery = nursery
        self._lookup = ChangedDocuments(mongod, namespace, uuid, lambda document: True)
        self._is_open = False

    async def clone_batch(self, number: int | None) -> memoryview:
        """A batch of the clone (see `CollectionScan.next_batch`), which the first request begins.

        The recipient clones one collection after the other; so there is one cursor, and one batch in memory, at a time.

        Raises:
            CommandError: NamespaceNotFound, the collection is gone; or why the clone failed.
            BackendError: mongod does not answer.
        """
        try:
            if not self._is_open:
                await self.scan.open()
                self._is_open = True
                self._nursery.start_soon(self.scan.run)
            return await self.scan.next_batch(number)
        except CommandError as error:
            if await self._is_gone(error):
                raise CommandError(ErrorCode.NamespaceNotFound, error.message) from error
            raise

    async def changes(self, elements: dict[bytes, bytes]) -> tuple[CollectionChanges, Container[bytes]]:
        """The present state of documents, and those that have to be looked up again; none if the collection is gone.

        Args:
            elements: their ``_id`` elements, as keys in the order of the changes.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        try:
            found = await self._lookup.read(elements)
        except CommandError as error:
            if await self._is_gone(error):
                return CollectionChanges(self._uuid, [], []), ()
            raise
        deleted = [rawbson.from_elements(element) for element in found.deleted]
        order = {element: position for position, element in enumerate(elements)}
        reload = sorted(found.reload, key=lambda document: order.get(_id_element(document), 0))
        return CollectionChanges(self._uuid, deleted, reload), found.unread

    async def _is_gone(self, error: CommandError) -> bool:
        """Whether an error is due to the collection having been dropped, renamed or replaced."""
        if error.code not in _MAY_BE_GONE:
            return False
        present = await describe(self._mongod, self._namespace)
        return present is None or present.uuid != self._uuid


def _id_element(document: bytes) -> bytes:
    identity = rawbson.find(document, b"_id")
    assert identity is not None, "every document has an _id"
    return document[identity[1] : identity[3]]
