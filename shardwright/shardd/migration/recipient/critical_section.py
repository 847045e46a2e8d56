"""The recipient's critical section: the range is complete here, and whether it is this shard's is being decided.

It is persisted before the donor learns that it may commit, so that it also holds on the next primary, until the
donor has said that the decision is made. The documents are those of MongoDB 6.0.5, in its order: the recipient's own
(``migrationRecipients``) stands as long as anything of the critical section does.
"""

from collections.abc import Mapping
from typing import Any

import trio
from bson.binary import Binary

from shardwright.daemon.logs import get_logger
from shardwright.shardd.context.fail_point_names import MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.shardd.local_mongod.reserved_sessions import LOCAL_WRITE_CONCERN
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.metadata.critical_section import CriticalSection
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.documents import CRITICAL_SECTIONS, MIGRATION_RECIPIENTS, MigrationRecipientDocument
from shardwright.wire.errors import CommandError

logger = get_logger("shardd.migration.recipient")


class RecipientCriticalSection:
    """The critical section of one migration.

    Args:
        context: of this shard daemon.
        recipient: the document that describes it.

    Attributes:
        has_begun: whether there may be anything of it to be undone by `leave`.
    """

    def __init__(self, context: ShardContext, recipient: MigrationRecipientDocument) -> None:
        self.has_begun = False
        self._mongod = context.mongod
        self._context = context
        self._recipient = recipient
        self._reason = {"recvChunk": 1, "sessionId": recipient.session_id}
        self._section: CriticalSection | None = None

    async def begin(self) -> None:
        """Block writes here, and begin to write that down: it lasts only together with what `complete` writes.

        Writes under way were let in before the range came and cannot see it; they are not waited for.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        recipient = self._recipient
        section = {"_id": recipient.namespace, "reason": self._reason, "blockReads": False}
        with trio.CancelScope(shield=True):  # or they might come after the deletion that undoes them
            self.has_begun = True
            await self._insert(MIGRATION_RECIPIENTS, recipient.to_document())
            await self._insert(CRITICAL_SECTIONS, section)
        await self._block_writes()

    async def complete(self) -> None:
        """Block reads, too. When this returns a majority has the critical section and all that was written before.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        assert self._section is not None
        self._section.blocks_reads = True
        await self._save_section(MAJORITY)

    async def restore(self) -> bool:
        """Put back what a former primary had; returns whether it had been completed.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        self.has_begun = True
        await self._block_writes()
        assert self._section is not None
        self._section.blocks_reads = True
        section = await ConfigCollection(self._mongod, CRITICAL_SECTIONS).get(self._recipient.namespace)
        return section is not None and section["reason"] == self._reason and bool(section["blockReads"])

    async def leave(self) -> None:
        """The decision is made: learn it, and let operations go on.

        Raises:
            CommandError: mongod refuses; it has to be called again.
            BackendError: mongod does not answer; likewise.
        """
        state = self._context.namespace(self._recipient.namespace)
        if self._section is not None and state.critical_section is self._section:
            await self._refresh(state)
            # Not to be kept waiting by what follows: a crash now would only bring the section back until the donor,
            # which has had no answer, reports again that the decision is made.
            state.release()
        await self._delete_section()
        await ConfigCollection(self._mongod, MIGRATION_RECIPIENTS).remove(Binary.from_uuid(self._recipient.id))
        self.has_begun = False

    async def _refresh(self, state: NamespaceState) -> None:
        # Whatever has been read before the decision, or is being read, is thrown away.
        state.forget()
        try:
            self._context.fail_points.fail_if_on(MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH)
            await self._context.refresher.refresh_collection(state)
        except CommandError as error:
            # Operations do it themselves, as soon as the config servers answer.
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
    """The migrations whose critical section was on when the last primary ended.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    documents = await ConfigCollection(context.mongod, MIGRATION_RECIPIENTS).all()
    return [MigrationRecipientDocument.from_document(document) for document in documents]
