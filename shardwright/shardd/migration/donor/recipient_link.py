"""What the donor says to the recipient, and how it understands the answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.logs import get_logger
from shardwright.shardd.cluster.network import repeated
from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.attempts import MigrationAttempts
from shardwright.shardd.migration.donor.plan import MovePlan
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("shardd.migration.donor")

_FAILED: Final = frozenset({"fail", "abort"})


class RecipientLostError(Exception):
    """The recipient no longer knows of the attempt under way: it was restarted, or another member is primary."""


@dataclass(frozen=True, slots=True)
class RecipientStatus:
    """An answer to ``_recvChunkStatus`` or ``_recvChunkCommit`` about the attempt under way.

    Attributes:
        state: of the recipient.
        counts: ``cloned``, ``clonedBytes``, ``catchup`` and ``steady``.
        cluster_time: the ``$clusterTime`` of the answer, which is after everything that the recipient has written.
    """

    state: str
    counts: Mapping[str, Any]
    cluster_time: Mapping[str, Any] | None


class RecipientLink:
    """The recipient of one migration.

    Args:
        context: of this shard daemon.
        coordinator: the migration.
        plan: what moves.
    """

    def __init__(self, context: ShardContext, coordinator: MigrationCoordinatorDocument, plan: MovePlan) -> None:
        self._context = context
        self._coordinator = coordinator
        self._plan = plan
        self._namespace = str(plan.request.namespace)

    async def start(self, attempts: MigrationAttempts) -> dict[str, Any]:
        """Have it begin to receive, or go on where an attempt before this one was cut off; returns its answer.

        Raises:
            CommandError: it refused, or could not be reached.
        """
        coordinator, plan = self._coordinator, self._plan
        start = {
            "_recvChunkStart": self._namespace,
            "uuid": Binary.from_uuid(coordinator.id),
            "lsid": dict(coordinator.lsid),
            "txnNumber": Int64(coordinator.txn_number),
            "sessionId": attempts.attempts[-1].session_id,
            "from": await self._own_connection_string(),
            "fromShardName": coordinator.donor,
            "toShardName": coordinator.recipient,
            **plan.range.to_document(),
            "shardKeyPattern": raw_document(plan.table.key_pattern.document),
            "secondaryThrottle": plan.request.secondary_throttle,
            "writeConcern": dict(plan.request.write_concern),
            # No MongoDB has these two. They are what a recipient needs to resume.
            "collectionUUID": Binary.from_uuid(coordinator.collection_uuid),
            "attempts": [attempt.to_document() for attempt in attempts.attempts],
        }
        return await self._send(start)

    async def status(self, session_id: str) -> RecipientStatus:
        """How far it has come; it answers when it is steady or done, or after a second.

        Raises:
            RecipientLostError: it knows nothing of this attempt any more.
            CommandError: OperationIncomplete, it is at work on another migration; OperationFailed, it has failed;
                or it could not be reached.
        """
        command = {"_recvChunkStatus": self._namespace, "waitForSteadyOrDone": True, "sessionId": session_id}
        return self.understand(await self._send(command), session_id)

    async def commit(self, session_id: str) -> RecipientStatus:
        """Have it apply what is left and keep the range for itself until `release`; not to be repeated.

        Raises:
            CommandError: it could not, or has perhaps not.
        """
        command = {"_recvChunkCommit": self._namespace, "acquireCSOnRecipient": True, "sessionId": session_id}
        reply = await send_to_shard(self._context, self._coordinator.recipient, "admin", command)
        return RecipientStatus(reply.get("state", ""), reply.get("counts", {}), reply.get("$clusterTime"))

    async def abort(self, session_id: str) -> None:
        """Have it give up.

        Raises:
            CommandError: it refused, or could not be reached.
        """
        await self._once({"_recvChunkAbort": self._namespace, "sessionId": session_id})

    async def release(self, session_id: str) -> None:
        """The config servers have decided: let operations on the range go on there.

        Raises:
            CommandError: it refused, or could not be reached.
        """
        command = {"_recvChunkReleaseCritSec": self._namespace, "sessionId": session_id, "writeConcern": MAJORITY}
        await self._once(command)

    def understand(self, reply: Mapping[str, Any], session_id: str) -> RecipientStatus:
        """What an answer to `status` tells.

        Raises:
            RecipientLostError: see `status`.
            CommandError: likewise.
        """
        state, counts = reply.get("state", ""), reply.get("counts", {})
        is_about_this = reply.get("sessionId", session_id) == session_id and self._is_this_migration(reply)
        if state in _FAILED and is_about_this:
            raise CommandError(
                ErrorCode.OperationFailed, f"Data transfer error: {reply.get('errmsg') or 'aborted by the recipient'}"
            )
        if not reply.get("active"):
            raise RecipientLostError(f"the recipient is not active in the session {session_id}: it is {state!r}")
        if not is_about_this:
            raise CommandError(
                ErrorCode.OperationIncomplete,
                f"Unable to continue with the migration because the recipient is busy with another one: session "
                f"{reply.get('sessionId')}, namespace {reply.get('ns')}, from {reply.get('fromShardId')}; "
                f"expected session {session_id}, namespace {self._namespace}, from {self._coordinator.donor}",
            )
        return RecipientStatus(state, counts, reply.get("$clusterTime"))

    def _is_this_migration(self, reply: Mapping[str, Any]) -> bool:
        if (reply.get("ns"), reply.get("fromShardId")) != (self._namespace, self._coordinator.donor):
            return False
        encode, moved = self._plan.table.key_pattern.key_bytes, self._plan.range
        bounds = [encode(encode_document(reply.get(bound) or {})) for bound in ("min", "max")]
        return bounds == [moved.min_key, moved.max_key]

    async def _own_connection_string(self) -> str:
        catalog = await self._context.catalog()
        return (await catalog.shards())[self._coordinator.donor].host

    async def _once(self, command: Mapping[str, Any]) -> None:
        await send_to_shard(self._context, self._coordinator.recipient, "admin", command)

    async def _send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send what may be repeated, and repeat it when the network fails."""

        def log(error: CommandError) -> None:
            logger.warning(
                "Could not reach the recipient",
                namespace=self._namespace,
                shard=self._coordinator.recipient,
                command=next(iter(command)),
                error=str(error),
            )

        return await repeated(lambda: send_to_shard(self._context, self._coordinator.recipient, "admin", command), log)
