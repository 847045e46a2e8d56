"""The donor's requests to the recipient, and the comparison of both sides' documents before the commit.

The critical section may begin once the remaining changes can be transferred in next to no time (`BacklogLimit`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.shardd.cluster.network import as_command_error, repeated
from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.config_collection import MAJORITY
from shardwright.shardd.migration.documents import MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.plan import MovePlan
from shardwright.shardd.migration.donor.store import MigrationAttempts
from shardwright.shardd.migration.source.clone_source import CloneSource
from shardwright.shardd.migration.source.range_documents import RangeDigest, digest
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("shardd.migration.donor")

_FAILED: Final = frozenset({"fail", "abort"})


class RecipientLostError(Exception):
    """The recipient has lost the current attempt: it was restarted, or another member has become primary."""


@dataclass(frozen=True, slots=True)
class RecipientStatus:
    """A reply to ``_recvChunkStatus`` or ``_recvChunkCommit`` about the current attempt.

    Attributes:
        state: the recipient's state, such as ``steady``.
        counts: ``cloned``, ``clonedBytes``, ``catchup`` and ``steady``.
        cluster_time: the reply's ``$clusterTime``, which is not before any of the recipient's writes.
    """

    state: str
    counts: Mapping[str, Any]
    cluster_time: Mapping[str, Any] | None


class RecipientLink:
    """Sends commands to the recipient of one migration.

    All methods raise CommandError if the recipient refused or could not be reached.
    """

    def __init__(self, context: ShardContext, coordinator: MigrationCoordinatorDocument, plan: MovePlan) -> None:
        self._context = context
        self._coordinator = coordinator
        self._plan = plan
        self._namespace = str(plan.request.namespace)

    async def start(self, attempts: MigrationAttempts) -> dict[str, Any]:
        """Make the recipient begin to receive, or resume an interrupted attempt; return its reply."""
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
            # MongoDB does not send these two fields. Our recipients need them to resume.
            "collectionUUID": Binary.from_uuid(coordinator.collection_uuid),
            "attempts": [attempt.to_document() for attempt in attempts.attempts],
        }
        return await self._send(start)

    async def status(self, session_id: str) -> RecipientStatus:
        """Return the recipient's status, once it is steady or done, or after a second.

        Raises RecipientLostError if the recipient has lost this attempt, OperationIncomplete if it is busy with another
        migration, and OperationFailed if it has failed.
        """
        command = {"_recvChunkStatus": self._namespace, "waitForSteadyOrDone": True, "sessionId": session_id}
        return self.interpret(await self._send(command), session_id)

    async def commit(self, session_id: str) -> RecipientStatus:
        """Make the recipient apply the remaining changes and enter its critical section until `release`.

        Must not be repeated. After an error the outcome may be unknown.
        """
        command = {"_recvChunkCommit": self._namespace, "acquireCSOnRecipient": True, "sessionId": session_id}
        reply = await send_to_shard(self._context, self._coordinator.recipient, "admin", command)
        return RecipientStatus(reply.get("state", ""), reply.get("counts", {}), reply.get("$clusterTime"))

    async def abort(self, session_id: str) -> None:
        """Make the recipient abort the attempt."""
        await self._once({"_recvChunkAbort": self._namespace, "sessionId": session_id})

    async def release(self, session_id: str) -> None:
        """Make the recipient leave its critical section, after the decision of the config servers."""
        command = {"_recvChunkReleaseCritSec": self._namespace, "sessionId": session_id, "writeConcern": MAJORITY}
        await self._once(command)

    def interpret(self, reply: Mapping[str, Any], session_id: str) -> RecipientStatus:
        """Read a reply to `status`; errors are as there."""
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
        """Send an idempotent command, and repeat it when the network fails."""

        def log(error: CommandError) -> None:
            logger.warning(
                "Could not reach the recipient",
                namespace=self._namespace,
                shard=self._coordinator.recipient,
                command=next(iter(command)),
                error=str(error),
            )

        return await repeated(lambda: send_to_shard(self._context, self._coordinator.recipient, "admin", command), log)


async def verify_range(context: ShardContext, coordinator: MigrationCoordinatorDocument, plan: MovePlan) -> None:
    """Compute the range's digest on both sides concurrently, and raise DataCorruptionDetected if they differ."""
    collection = plan.table.collection
    digests: dict[str, RangeDigest] = {}
    errors: list[CommandError] = []

    async def ask_recipient() -> None:
        command = {
            "_shardsvrDigestRange": coordinator.namespace,
            "collectionUUID": Binary.from_uuid(collection.uuid),
            "shardKeyPattern": raw_document(collection.key_pattern.document),
            **plan.range.to_document(),
        }
        try:
            reply = await send_to_shard(context, coordinator.recipient, "admin", command)
            digests["recipient"] = RangeDigest.from_document(reply)
        except CommandError as error:
            errors.append(error)

    async def read_own() -> None:
        try:
            digests["donor"] = await digest(
                context.mongod, collection.namespace, collection.uuid, collection.key_pattern, plan.range
            )
        except (CommandError, BackendError) as error:
            errors.append(as_command_error(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_recipient)
        nursery.start_soon(read_own)
    if errors:
        raise errors[0]
    own, its = digests["donor"], digests["recipient"]
    if own != its:
        raise CommandError(
            ErrorCode.DataCorruptionDetected,
            f"the documents of {coordinator.namespace} {plan.range} differ after their migration: the donor has "
            f"{own.documents} documents, the recipient {its.documents}; nothing has been committed",
        )
    logger.info("Verified a migration", namespace=coordinator.namespace, documents=own.documents)


_SMALL_IDS: Final = 64
_BIGGER_EVERY_SECONDS: Final = 5.0
_SHARE_MAX: Final = 0.1
"""MongoDB's ``maxCatchUpPercentageBeforeBlockingWrites``, as a fraction: the limit grows to this share of the clone."""


class BacklogLimit:
    """Maximum number of changed documents left at the beginning of the critical section.

    It is small at first, which keeps the pause for writers short. Writers that are faster than the recipient would keep
    a migration from ever ending, so the limit doubles with time, up to MongoDB's.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def is_met(self, source: CloneSource) -> bool:
        """Whether the critical section may begin: nothing is left to clone and few changes are queued."""
        if not source.is_clone_exhausted:
            return False
        doublings = int((time.monotonic() - self._since) / _BIGGER_EVERY_SECONDS)
        most = max(int(source.documents_cloned * _SHARE_MAX), _SMALL_IDS)
        return source.queued_ids <= min(_SMALL_IDS << min(doublings, 32), most)
