"""Pulling from one donor: the clone, then changes until the commit, with the session history alongside."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import trio
from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.context.fail_point_names import (
    RESHARDING_PAUSE_RECIPIENT_DURING_CLONING,
    RESHARDING_PAUSE_RECIPIENT_DURING_OPLOG_APPLICATION,
)
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.remote_sets import is_transient
from shardwright.shardd.local_mongod.reserved_sessions import required_array
from shardwright.shardd.migration.recipient.donor_link import DonorConnection
from shardwright.shardd.resharding.local_documents import PullProgress, RecipientWriter
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.shardd.session_history.statement import ExecutedStatement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_operation import ReshardingStatistics
from shardwright.sharding.resharding_participation import Participation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import array_documents, decode_value, find, raw_document

_PASSING: Final = frozenset(
    {
        ErrorCode.LockFailed,  # a note in the oplog does not wait for a lock
        ErrorCode.NotYetInitialized,  # the source must be opened again
        ErrorCode.WriteConcernFailed,
    }
)


def is_passing(error: CommandError) -> bool:
    """Whether the failed operation may succeed a little later."""
    return is_transient(error) or error.code in _PASSING


_HISTORY_POLL_SECONDS: Final = 0.25
"""Pause after the donor had nothing more to hand over."""


class ReshardingHistory:
    """Session migration from one donor; a new session starts from the beginning.

    Methods raise CommandError if the donor or the local mongod refuses, and BackendError if the latter does not answer.
    """

    def __init__(self, table: HistoryTable, participation: Participation) -> None:
        self._table = table
        self._participation = participation
        self._session_id = ""
        self._number = 0
        self._pulling = trio.Lock()

    async def follow(self, connection: DonorConnection, recipient: str, session_id: str) -> None:
        """Pull until cancelled, or until the donor or the local mongod refuses."""
        while True:
            await self.drain(connection, recipient, session_id)
            await trio.sleep(_HISTORY_POLL_SECONDS)

    async def drain(self, connection: DonorConnection, recipient: str, session_id: str) -> None:
        """Pull everything that the donor has now, and wait until a majority of this shard has it."""
        async with self._pulling:
            if session_id != self._session_id:
                self._session_id, self._number = session_id, 0
            session = {
                "reshardingUUID": Binary.from_uuid(self._participation.id),
                "recipient": recipient,
                "sessionId": session_id,
            }
            while await self._pull_batch(connection, session):
                pass

    async def _pull_batch(self, connection: DonorConnection, session: Mapping[str, Any]) -> bool:
        command = {"_shardsvrReshardingSessionHistory": 1, **session, "number": self._number}
        reply = await connection.command("admin", command)
        statements = array_documents(reply, required_array(reply, b"oplog"))
        await self._table.absorb([self._translated(each) for each in statements])
        self._number += 1
        return bool(statements)

    def _translated(self, raw: bytes) -> bytes:
        """Rewrite a statement for the resharded collection, without a shard key, which is unknown."""
        statement = ExecutedStatement.from_bson(raw)
        if statement.is_incomplete_history:
            return raw
        return statement._replace(collection_uuid=self._participation.id.bytes, key=None).to_bson()


logger = get_logger("shardd.resharding.recipient")

_POLL_SECONDS: Final = 0.1
"""Pause after the donor had no changes."""


class PullRequest:
    """The donor and session of a pull, as `DonorConnection` requires them."""

    def __init__(self, namespace: Namespace, donor: str, session_id: str) -> None:
        self.namespace = namespace
        self.donor = donor
        self.session_id = session_id


class DonorPull:
    """Everything that this shard pulls from one donor.

    Args:
        progress: the checkpoint of a former primary.
        history: stores retryable writes; None if this shard is the donor itself and has them already.

    Attributes:
        progress: the current checkpoint.
        cloned: set when the clone is complete.
        queued: number of changes that the donor had still to hand over at the last request; None before that.
    """

    def __init__(
        self,
        context: ShardContext,
        participation: Participation,
        writer: RecipientWriter,
        progress: PullProgress,
        history: ReshardingHistory | None,
        statistics: ReshardingStatistics,
    ) -> None:
        self.progress = progress
        self.queued: int | None = None
        self.cloned = trio.Event()
        if progress.is_cloned:
            self.cloned.set()
        self._context = context
        self._participation = participation
        self._writer = writer
        self._history = history
        self._statistics = statistics
        self._donor = progress.donor
        self._me = context.require_identity().shard_name
        self._wanted = Timestamp(0, 0)
        self._is_wanted = trio.Event()
        self._advanced = trio.lowlevel.ParkingLot()
        self._is_drained = False

    async def run(self) -> None:
        """Pull until cancelled. If the donor's source is lost, it is opened again from the checkpoint.

        Raises:
            CommandError: pulling cannot continue: CappedPositionLost, the donor's oplog does not reach back to the
                checkpoint; DuplicateKey; NoSuchReshardCollection, the donor does not take part; and others.
            BackendError: the local mongod does not answer.
        """
        backoff = Backoff(first_seconds=0.1, seconds_max=2.0)
        while True:
            try:
                await self._pull()
            except CommandError as error:
                if not is_passing(error):
                    raise
                logger.warning("Lost a donor", shard=self._donor, error=str(error))
            await backoff.pause()

    async def wait_followed(self, time: Timestamp) -> None:
        """Wait until all changes of the donor up to a time, and its session history, are written."""
        self._wanted, self._is_drained = time, False
        self._is_wanted.set()
        while not self._is_drained:
            await self._advanced.park()

    async def _pull(self) -> None:
        session_id = f"{self._participation.id}_{self._donor}_{self._me}_{ObjectId()}"
        request = PullRequest(self._participation.namespace, self._donor, session_id)
        connection, history_connection = (DonorConnection(self._context, request) for _ in range(2))
        session = _PullSession(connection, self._participation, self._me, session_id)
        failures: list[CommandError | BackendError] = []

        async def run(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except (CommandError, BackendError) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        async def follow_history() -> None:
            if self._history is not None:
                await self._history.follow(history_connection, self._me, session_id)

        async def pull() -> None:
            await self._clone(session)
            await self._follow(session, session_id, history_connection)

        try:
            position = await session.open(self.progress)
            if self.progress.position is None:
                await self._begin_at(position)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, follow_history)
                nursery.start_soon(run, pull)
        finally:
            connection.close()
            history_connection.close()
        for failure in failures:
            raise failure

    async def _begin_at(self, position: Timestamp) -> None:
        """Persist the position to follow the donor from, before any document is written.

        This shard may fail in the middle of the first batch. The donor may then delete documents of that batch before
        the source is opened again. Only a source opened at this position reports that.
        """
        progress = replace(self.progress, position=position)
        await self._writer.apply(self._donor, (), (), progress)
        self.progress = progress

    async def _clone(self, session: "_PullSession") -> None:
        while not self.progress.is_cloned:
            await self._context.fail_points.hang_while(RESHARDING_PAUSE_RECIPIENT_DURING_CLONING)
            asked = trio.current_time()
            documents, key = await session.next_clone_batch()
            self._statistics.fetching.add(trio.current_time() - asked)
            before = self.progress
            progress = replace(
                before,
                is_cloned=key is None,
                from_key=key if key is not None else before.from_key,
                documents=before.documents + len(documents),
                bytes=before.bytes + sum(map(len, documents)),
            )
            await self._writer.apply(self._donor, (), documents, progress)
            self._statistics.documents_copied += progress.documents - before.documents
            self._statistics.bytes_copied += progress.bytes - before.bytes
            self.progress = progress
        self.cloned.set()

    async def _follow(self, session: "_PullSession", session_id: str, connection: DonorConnection) -> None:
        while True:
            await self._context.fail_points.hang_while(RESHARDING_PAUSE_RECIPIENT_DURING_OPLOG_APPLICATION)
            wanted = self._wanted if self._is_wanted.is_set() else None
            gone, documents, position, self.queued = await session.next_mods(wanted)
            if gone or documents:
                count = self.progress.changes + len(gone) + len(documents)
                progress = replace(self.progress, position=position, changes=count)
                await self._apply_changes(gone, documents, progress)
                continue
            if wanted is not None:
                if self._history is not None:
                    await self._history.drain(connection, self._me, session_id)
                if wanted == self._wanted:  # no later time was requested in between
                    self._is_wanted = trio.Event()
                    self._is_drained = True
                    self._advanced.unpark_all()
            with trio.move_on_after(_POLL_SECONDS):
                await self._is_wanted.wait()

    async def _apply_changes(self, gone: Sequence[bytes], documents: Sequence[bytes], progress: PullProgress) -> None:
        statistics, began = self._statistics, trio.current_time()
        statistics.changes_fetched += len(gone) + len(documents)
        await self._writer.apply(self._donor, gone, documents, progress)
        self.progress = progress
        statistics.applying.add(trio.current_time() - began)
        statistics.changes_applied += len(gone) + len(documents)
        statistics.deleted += len(gone)
        statistics.stored += len(documents)


class _PullSession:
    """The commands of one session."""

    def __init__(
        self, connection: DonorConnection, participation: Participation, recipient: str, session_id: str
    ) -> None:
        self._connection = connection
        self._fields = {
            "reshardingUUID": participation.to_document()["_id"],
            "recipient": recipient,
            "sessionId": session_id,
        }
        self._participation = participation
        self._clone_number = self._mods_number = 0

    async def open(self, progress: PullProgress) -> Timestamp:
        command: dict[str, Any] = {"_shardsvrReshardingOpenSource": self._participation.to_document(), **self._fields}
        if progress.position is not None:
            command["position"] = progress.position
        if progress.from_key is not None:
            command["fromKey"] = raw_document(progress.from_key)
        return _position(await self._connection.command("admin", command))

    async def next_clone_batch(self) -> tuple[list[bytes], bytes | None]:
        reply = await self._ask("_shardsvrReshardingClone", {"number": self._clone_number})
        self._clone_number += 1
        key = find(reply, b"upTo")
        documents = array_documents(reply, required_array(reply, b"objects"))
        return documents, None if key is None else reply[key[2] : key[3]]

    async def next_mods(self, since: Timestamp | None) -> tuple[list[bytes], list[bytes], Timestamp, int]:
        wait = {} if since is None else {"since": since}
        reply = await self._ask("_shardsvrReshardingMods", {"number": self._mods_number, **wait})
        self._mods_number += 1
        gone, documents = (array_documents(reply, required_array(reply, name)) for name in (b"deleted", b"reload"))
        queued = find(reply, b"queued")
        return gone, documents, _position(reply), 0 if queued is None else int(decode_value(reply, queued))

    async def _ask(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return await self._connection.command("admin", {name: 1, **self._fields, **fields})


def _position(reply: bytes) -> Timestamp:
    span = find(reply, b"position")
    if span is None:
        raise CommandError(ErrorCode.FailedToParse, "the donor's reply has no 'position'")
    position: Timestamp = decode_value(reply, span)
    return position
