"""The part of every shard in a change for which operations on a collection have to wait on all its owners.

A coordinator blocks the collection on each shard by one command (``_shardsvrParticipantBlock``), and ends that by
another once the catalog and the shard have changed. The critical section is recorded as MongoDB records it, so that the
next primary makes operations wait before it admits any.
"""

from typing import Final

import trio

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.shardd.metadata.critical_sections import CRITICAL_SECTIONS, enter_exclusively, leave, restore
from shardwright.sharding.namespace import Namespace

READS_AND_WRITES: Final = "ReadsAndWrites"
UNBLOCK: Final = "Unblock"
"""The values of ``blockType``."""

_COMMAND: Final = "ShardSvrParticipantBlockCommand"
"""The ``command`` in the reason of these critical sections."""


class BlockedCollections:
    """The collections that coordinators have blocked on this shard.

    Args:
        context: this shard daemon's context.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._documents = ConfigCollection(context.mongod, CRITICAL_SECTIONS)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Make operations wait on the collections that a former primary has blocked, before any are admitted."""
        for document in await self._documents.all():
            if document["reason"].get("command") == _COMMAND:
                await restore(self._context.namespace(document["_id"]), document["reason"])

    def end_term(self) -> None:
        """Do nothing: critical sections end with the term."""

    async def block(self, namespace: Namespace) -> None:
        """Wait for the writes under way, and make new operations wait until `unblock`; may be repeated.

        Raises:
            CommandError: LockBusy, a write under way did not end; or an error of mongod.
            BackendError: mongod does not answer.
        """
        reason = _reason(namespace)
        await enter_exclusively(self._context.namespace(str(namespace)), reason)
        # A recipient's section, which is recorded by the same key, is over by now.
        await self._documents.save({"_id": str(namespace), "reason": reason, "blockReads": True})

    async def unblock(self, namespace: Namespace) -> None:
        """Admit operations again, by what the catalog says now; may be repeated.

        Raises:
            CommandError: the config servers could not be reached, or an error of mongod.
            BackendError: mongod does not answer.
        """
        state = self._context.namespace(str(namespace))
        state.forget()
        await self._context.refresher.reread_collection(state)
        # A secondary must not read new buckets by old metadata.
        await self._context.writer.wait_collection_saved(state.namespace)
        document = await self._documents.get(str(namespace))
        if document is not None and document["reason"] == _reason(namespace):
            await self._documents.remove(str(namespace))
        leave(state, _reason(namespace))

    async def abandon(self) -> None:
        """Admit operations on all collections again, which nobody unblocks on a shard that has been removed.

        Raises:
            CommandError, BackendError: mongod failed.
        """
        for document in await self._documents.all():
            if document["reason"].get("command") == _COMMAND:
                await self._documents.remove(document["_id"])
                leave(self._context.namespace(document["_id"]), document["reason"])


def _reason(namespace: Namespace) -> dict[str, str]:
    return {"command": _COMMAND, "ns": str(namespace)}
