"""The recipient's critical section: the range is complete here, and the donor decides whether to commit.

It is persisted before the donor may commit, so that it also holds on the next primary, until the donor reports that the
decision has been made. The documents and their order are as in MongoDB 6.0.5: the ``migrationRecipients`` document is
inserted before the ``collection_critical_sections`` document, and removed after it.
"""

from collections.abc import Mapping
from typing import Any

import trio
from bson.binary import Binary

from shardwright.shardd.context.fail_point_names import MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.config_collection import LOCAL_WRITE_CONCERN, MAJORITY, ConfigCollection
from shardwright.shardd.metadata.critical_sections import CRITICAL_SECTIONS
from shardwright.shardd.metadata.namespace_state import CriticalSection, NamespaceState
from shardwright.shardd.migration.documents import MIGRATION_RECIPIENTS, MigrationRecipientDocument
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.recipient")


class RecipientCriticalSection:
    """One migration's critical section.

    Attributes:
        has_begun: whether it may be in effect or persisted, so that it has to be left.
    """

    def __init__(self, context: ShardContext, recipient: MigrationRecipientDocument) -> None:
        self.has_begun = False
        self._mongod = context.mongod
        self._context = context
        self._recipient = recipient
        self._reason = {"recvChunk": 1, "sessionId": recipient.session_id}
        self._section: CriticalSection | None = None

    async def begin(self) -> None:
        """Block writes, and insert the section's documents, which become durable only with `complete`.

        Running writes need not end first: they were admitted before the range arrived and do not touch it.
        """
        recipient = self._recipient
        section = {"_id": recipient.namespace, "reason": self._reason, "blockReads": False}
        with trio.CancelScope(shield=True):  # if cancelled, they might reach mongod after the deletes of `leave`
            self.has_begun = True
            await self._insert(MIGRATION_RECIPIENTS, recipient.to_document())
            await self._insert(CRITICAL_SECTIONS, section)
        await self._block_writes()

    async def complete(self) -> None:
        """Block reads too. On return a majority has the critical section and everything written before it."""
        assert self._section is not None
        self._section.blocks_reads = True
        await self._save_section(MAJORITY)

    async def restore(self) -> bool:
        """Re-enter the section of an earlier term; return whether it was complete there."""
        self.has_begun = True
        await self._block_writes()
        assert self._section is not None
        self._section.blocks_reads = True
        section = await ConfigCollection(self._mongod, CRITICAL_SECTIONS).get(self._recipient.namespace)
        return section is not None and section["reason"] == self._reason and bool(section["blockReads"])

    async def leave(self) -> None:
        """Refresh the placement after the decision, release the waiting operations, and remove the documents.

        After an error it has to be called again.
        """
        state = self._context.namespace(self._recipient.namespace)
        if self._section is not None and state.critical_section is self._section:
            await self._refresh(state)
            state.note_arrival()  # or not, after an abort; then some transactions are repeated in vain
            # Operations need not wait for the deletes: a crash now would only bring the section back until the donor,
            # which has had no reply, reports the decision again.
            state.release()
        await self._delete_section()
        await ConfigCollection(self._mongod, MIGRATION_RECIPIENTS).remove(Binary.from_uuid(self._recipient.id))
        self.has_begun = False

    async def _refresh(self, state: NamespaceState) -> None:
        # This also discards the result of a refresh that began before the decision.
        state.forget()
        try:
            self._context.fail_points.fail_if_on(MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH)
            await self._context.refresher.refresh_collection(state)
        except CommandError as error:
            # Operations will refresh by themselves, once the config servers answer.
            logger.info("Leaving the critical section without a refresh", namespace=state.namespace, error=str(error))

    async def _block_writes(self) -> None:
        state = self._context.namespace(self._recipient.namespace)
        while (other := state.critical_section) is not None:
            await other.wait_released()
        self._section = state.critical_section = CriticalSection(self._reason)

    async def _insert(self, collection: str, document: Mapping[str, Any]) -> None:
        insert = {"insert": collection, "documents": [document], "writeConcern": LOCAL_WRITE_CONCERN}
        await self._mongod.write("config", insert)

    async def _save_section(self, write_concern: Mapping[str, Any]) -> None:
        query = {"_id": self._recipient.namespace, "reason": self._reason}
        update = {"q": query, "u": {"$set": {"blockReads": True}}}
        await self._mongod.write(
            "config", {"update": CRITICAL_SECTIONS, "updates": [update], "writeConcern": write_concern}
        )

    async def _delete_section(self) -> None:
        delete = {"q": {"_id": self._recipient.namespace, "reason": self._reason}, "limit": 1}
        await self._mongod.write(
            "config", {"delete": CRITICAL_SECTIONS, "deletes": [delete], "writeConcern": LOCAL_WRITE_CONCERN}
        )


async def recipients_left_behind(context: ShardContext) -> list[MigrationRecipientDocument]:
    """Load the migrations whose critical sections the last primary left behind."""
    documents = await ConfigCollection(context.mongod, MIGRATION_RECIPIENTS).all()
    return [MigrationRecipientDocument.from_document(document) for document in documents]
