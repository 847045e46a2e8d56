"""The recipient of a resharding operation, and the temporary collection in which it assembles its documents.

Functions that access mongod raise CommandError if it refuses, and BackendError if it does not answer.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.context.fail_point_names import RESHARDING_PAUSE_RECIPIENT_BEFORE_CLONING
from shardwright.shardd.context.shard_context import ShardContext, send_to_shard
from shardwright.shardd.exchange.remote_sets import as_command_error
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import MAJORITY, ConfigCollection
from shardwright.shardd.local_mongod.shard_key_index import has_supporting_index, index_specification
from shardwright.shardd.resharding.donor import read_ownership
from shardwright.shardd.resharding.donor_pull import DonorPull, ReshardingHistory, is_passing
from shardwright.shardd.resharding.local_documents import PROGRESS, LocalPart, PullProgress, RecipientWriter, StateTimes
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.sharding.resharding_operation import ReshardingStatistics, remaining_millis
from shardwright.sharding.resharding_participation import Participation, RecipientState, has_reached, stash_namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger


async def create_temporary(context: ShardContext, participation: Participation) -> tuple[str, ...]:
    """Create the temporary collection with a donor's options and indexes, and an index for the new key.

    It is a system collection, on which mongod hides no indexes. Hidden indexes are therefore hidden later.

    Returns:
        The names of the hidden indexes, for `hide_indexes`.

    Raises:
        CommandError: NamespaceNotFound, the donor does not have the collection; InvalidOptions, a unique index does not
            begin with the new key; an index cannot be created.
    """
    namespace, temporary = participation.namespace, participation.temporary
    listing = {"listCollections": 1, "filter": {"name": namespace.collection}}
    donor = participation.donors[0]
    found = (await send_to_shard(context, donor, namespace.db, listing))["cursor"]["firstBatch"]
    if not found:
        raise CommandError(ErrorCode.NamespaceNotFound, f"donor shard has no collection {namespace}")
    options = {name: value for name, value in found[0]["options"].items() if name != "uuid"}
    reply = await send_to_shard(context, donor, namespace.db, {"listIndexes": namespace.collection})
    indexes = _with_key_index(participation, reply["cursor"]["firstBatch"], options)
    mongod, id_index = context.mongod, found[0].get("idIndex")
    await local_collections.create_with_uuid(mongod, temporary, participation.id, options, id_index)
    await local_collections.create_indexes(mongod, temporary, [_visible(each) for each in indexes])
    return tuple(each["name"] for each in indexes if each.get("hidden"))


def _visible(index: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name != "hidden"}


def _with_key_index(
    participation: Participation, indexes: Sequence[dict[str, Any]], options: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    listed = (each for each in indexes if each["name"] != "_id_" and not each.get("clustered"))
    wanted = local_collections.specifications(listed, options)
    if not has_supporting_index(participation.namespace, participation.key, indexes, unique=False):
        has_collation = "collation" in options
        wanted.append(index_specification(participation.key, unique=False, has_default_collation=has_collation))
    return wanted


async def drop_source(context: ShardContext, participation: Participation) -> None:
    """Drop the former collection on a shard that has received nothing. May be repeated."""
    present = await local_collections.describe(context.mongod, participation.namespace)
    if present is None or present.uuid != participation.id:
        await local_collections.drop(context.mongod, participation.namespace)
        await context.open_cursors.note_gone(str(participation.namespace))


async def replace_source(context: ShardContext, participation: Participation) -> None:
    """Rename the assembled collection over the former one; NamespaceNotFound without it. May be repeated."""
    namespace, temporary, mongod = participation.namespace, participation.temporary, context.mongod
    present = await local_collections.describe(mongod, namespace)
    if present is not None and present.uuid == participation.id:
        return
    assembled = await local_collections.describe(mongod, temporary)
    if assembled is None or assembled.uuid != participation.id:
        raise CommandError(ErrorCode.NamespaceNotFound, f"This shard has no collection {temporary}")
    replaced = Binary.from_uuid(present.uuid) if present is not None and present.uuid is not None else False
    rename = {
        "renameCollection": str(temporary),
        "to": str(namespace),
        "dropTarget": replaced,
        "collectionUUID": Binary.from_uuid(participation.id),
        "writeConcern": MAJORITY,
    }
    await mongod.command("admin", rename)
    await context.open_cursors.note_gone(str(namespace))


async def hide_indexes(context: ShardContext, participation: Participation, names: Iterable[str]) -> None:
    """Hide indexes of the renamed collection that were hidden before. May be repeated."""
    for name in names:
        hide = {"collMod": participation.namespace.collection, "index": {"name": name, "hidden": True}}
        await local_collections.change(context.mongod, participation.namespace, {**hide, "writeConcern": MAJORITY})


async def remove_remains(context: ShardContext, participation: Participation) -> None:
    """Drop the operation's temporary data: the temporary collection, if it still exists, stashes and progress."""
    stashes = [stash_namespace(participation.source_uuid, donor) for donor in participation.donors]
    for namespace in (participation.temporary, *stashes):
        await local_collections.drop(context.mongod, namespace)
    progress = {"q": {"_id.reshardingUUID": Binary.from_uuid(participation.id)}, "limit": 0}
    await context.mongod.write("config", {"delete": PROGRESS, "deletes": [progress], "writeConcern": MAJORITY})


logger = get_logger("shardd.resharding.recipient")


class ReshardingRecipient:
    """The recipient of one operation, in one term.

    Attributes:
        documents_to_copy: approximate number of documents to receive; 0 if unknown.
        bytes_to_copy: approximate number of bytes to receive; 0 if unknown.
    """

    def __init__(
        self, context: ShardContext, part: LocalPart, history_table: HistoryTable, statistics: ReshardingStatistics
    ) -> None:
        self.part = part
        self.times = StateTimes(part.operation.state)
        self._context = context
        self._statistics = statistics
        self._history_table = history_table
        self.documents_to_copy = self.bytes_to_copy = 0
        self._pulls: dict[str, DonorPull] = {}
        self._is_pulling = trio.Event()
        self._writer: RecipientWriter | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._changing = trio.Lock()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def state(self) -> RecipientState:
        """The present state."""
        state = self.part.operation.state
        assert isinstance(state, RecipientState)
        return state

    async def run(self) -> None:
        """Receive everything, until `end` or a failure, which is persisted."""
        backoff = Backoff(first_seconds=0.2, seconds_max=5.0)
        try:
            with self._scope:
                while self.state is not RecipientState.ERROR:
                    failure = await self._try_to_receive()
                    if not is_passing(failure):
                        await self._until_saved(failure)
                    logger.warning("Receiving a resharded collection failed", error=str(failure))
                    await backoff.pause()
        finally:
            self._ended.set()
            self._changed.unpark_all()

    async def end(self) -> None:
        """Cancel `run` and wait until it writes nothing more."""
        self._scope.cancel()
        await self._ended.wait()

    async def wait_state(self, wanted: RecipientState, seconds_max: float) -> bool:
        """Wait a limited time for a state; return whether it is reached. Raises the error of a failed recipient."""
        with trio.move_on_after(seconds_max):
            while not has_reached(self.state, wanted) and self.state is not RecipientState.ERROR:
                await self._changed.park()
        self.check()
        return has_reached(self.state, wanted)

    def check(self) -> None:
        """Raise the error with which receiving has failed, if any."""
        if (error := self.part.operation.error) is not None:
            raise error

    async def reach_strict_consistency(self, last_writes: Mapping[str, Timestamp]) -> None:
        """Receive everything up to the last write on each donor. Writes are blocked there.

        Raises:
            CommandError: 5356800, two documents have the same ``_id``; receiving has failed; mongod refuses.
            BackendError: mongod does not answer.
        """
        if self.state is not RecipientState.APPLYING:
            return
        await self._is_pulling.wait()
        async with trio.open_nursery() as nursery:
            for donor, time in last_writes.items():
                nursery.start_soon(self._pulls[donor].wait_followed, time)
        assert self._writer is not None
        await self._writer.check_no_conflict()
        await self._context.wait_majority()
        if self.state is RecipientState.APPLYING:
            await self._enter(RecipientState.STRICT_CONSISTENCY)

    def progress(self) -> dict[str, Any]:
        """Return the progress figures, with MongoDB's names."""
        pulled = [each.progress for each in self._pulls.values()]
        elapsed = int((trio.current_time() - self.times.present) * 1000)
        copied, applied = (sum(getattr(each, name) for each in pulled) for name in ("bytes", "changes"))
        queued = [each.queued for each in self._pulls.values()]
        is_cloning = not has_reached(self.state, RecipientState.APPLYING)
        remaining = None
        if pulled and (is_cloning or not any(each is None for each in queued)):
            remaining = remaining_millis(
                elapsed_millis=elapsed,
                copied=copied,
                to_copy=max(self.bytes_to_copy, copied + 1) if is_cloning else 0,
                applied=applied,
                fetched=applied + sum(each or 0 for each in queued),
            )
        return {
            "elapsedMillis": Int64(elapsed),
            "remainingMillis": remaining,
            "approxDocumentsToCopy": Int64(self.documents_to_copy),
            "documentsCopied": Int64(sum(each.documents for each in pulled)),
            "approxBytesToCopy": Int64(self.bytes_to_copy),
            "bytesCopied": Int64(copied),
            "totalCopyTimeElapsedSecs": self.times.seconds_in(RecipientState.CLONING),
            "oplogEntriesFetched": Int64(applied + sum(each or 0 for each in queued)),
            "oplogEntriesApplied": Int64(applied),
            "totalApplyTimeElapsedSecs": self.times.seconds_in(RecipientState.APPLYING),
            "recipientState": str(self.state),
        }

    async def _try_to_receive(self) -> CommandError:
        """Receive until cancelled or failed; return the error."""
        try:
            return await self._receive()
        except (CommandError, BackendError) as error:
            return as_command_error(error)
        except Exception as error:
            # An internal error fails the operation, but not the daemon, where it would recur at each start.
            logger.exception("Internal error while receiving a resharded collection")
            return as_command_error(error)

    async def _receive(self) -> CommandError:
        participation = self.part.participation
        if self.state is RecipientState.STRICT_CONSISTENCY:
            # A former primary has everything, and may even have renamed the collection into place. Creating it again
            # would undo that, because mongod renames the collection that has the UUID.
            await trio.sleep_forever()
        if self.state is RecipientState.AWAITING_FETCH_TIMESTAMP:
            await self._enter(RecipientState.CREATING_COLLECTION)
        await self._context.fail_points.hang_while(RESHARDING_PAUSE_RECIPIENT_BEFORE_CLONING)
        hidden = await create_temporary(self._context, participation)
        if hidden != self.part.operation.hidden_indexes:
            await self.part.save(hidden_indexes=hidden)
        _, ownership = await read_ownership(self._context, participation)
        self._writer = RecipientWriter(self._context, participation, ownership)
        await self._writer.open()
        await self._open_pulls(self._writer)
        self._is_pulling.set()
        if self.state is RecipientState.CREATING_COLLECTION:
            await self._enter(RecipientState.CLONING)
        return await self._pull()

    async def _open_pulls(self, writer: RecipientWriter) -> None:
        participation = self.part.participation
        documents = ConfigCollection(self._context.mongod, PROGRESS)
        me = self._context.require_identity().shard_name
        pulls: dict[str, DonorPull] = {}
        for donor in participation.donors:
            progress = PullProgress(donor)
            document = progress.to_document(participation.id)
            stored = await documents.get(document["_id"])
            if stored is None:
                await documents.save(document)
            else:
                progress = PullProgress.from_document(stored)
            history = None if donor == me else ReshardingHistory(self._history_table, participation)
            pulls[donor] = DonorPull(self._context, participation, writer, progress, history, self._statistics)
        self._pulls = pulls

    async def _pull(self) -> CommandError:
        """Pull from all donors until the first failure, and return it."""
        failures: list[CommandError] = []

        async def run(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except (CommandError, BackendError) as error:
                failures.append(as_command_error(error))
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, self._wait_cloned)
            for pull in self._pulls.values():
                nursery.start_soon(run, pull.run)
        return failures[0]

    async def _wait_cloned(self) -> None:
        for pull in self._pulls.values():
            await pull.cloned.wait()
        if self.state is RecipientState.CLONING:
            await self._enter(RecipientState.APPLYING)

    async def _enter(self, state: RecipientState) -> None:
        async with self._changing:
            await self.part.save(state=state)
        self.times.enter(state)
        self._changed.unpark_all()

    async def _until_saved(self, failure: CommandError) -> None:
        backoff = Backoff(first_seconds=0.2, seconds_max=5.0)
        while True:
            try:
                async with self._changing:
                    await self.part.save(state=RecipientState.ERROR, error=failure)
            except (CommandError, BackendError) as error:
                logger.warning("Could not persist a failure", error=str(error))
            else:
                self._changed.unpark_all()
                return
            await backoff.pause()

    def shown(self) -> dict[str, Any]:
        """Return the recipient's fields of ``currentOp``."""
        progress = self.progress()
        remaining = progress.pop("remainingMillis")
        progress.pop("elapsedMillis")
        return {
            "remainingOperationTimeEstimatedSecs": Int64(-1 if remaining is None else remaining // 1000),
            **progress,
        }
