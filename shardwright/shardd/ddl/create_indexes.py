"""``createIndexes`` on all shards that own chunks of a collection, or on none (``_shardsvrCreateIndexes``).

Each shard validates a specification against its own indexes, and builds from its own documents. So the command is first
sent to the shards that may refuse it. If a build fails on one shard, the new indexes are dropped on the others again.
MongoDB 6.0, where a router sends the command to the shards, leaves them.

A build may take hours, during which other changes of the collection are not locked out. As in MongoDB, a drop of the
collection or of the indexes (`DropIndexes`) ends the build. The locks cover only the indexes: they guarantee that this
command caused any difference left by a failure. A rename is refused (`IndexCreations`).
"""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from math import inf
from typing import Any, ClassVar, Final
from uuid import UUID

import trio
from bson.binary import Binary

from shardwright.daemon.current_op import new_opid
from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.ddl_locks import IndexCreation
from shardwright.shardd.ddl.coordinator import COLLECTION
from shardwright.shardd.ddl.index_owners import (
    ROUND_SECONDS,
    Index,
    IndexChange,
    IndexOwners,
    Outcome,
    end_builds,
    index_lock,
    names_of,
    raise_outage,
    reply_of,
)
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_exactly, encode_document, is_string, raw_document

logger = get_logger("shardd.coordinators")


REQUEST: Final = "createIndexesRequest"
"""The argument with the client's command without transport fields, as raw bytes, possibly invalid BSON.

A mongod accepts specifications and comments that it does not store unchanged, such as one with only a field ``$id``.
"""

BUILD: Final = "buildIndexes"
UNDO: Final = "dropBuiltIndexes"

_EXISTING: Final = "existing"
_REPLIES: Final = "replies"

_WRITE_CONCERN: Final = "writeConcern"
_MET_BY_MAJORITY: Final = (None, 0, 1, "majority")


class CreateIndexes(IndexChange):
    """Creates indexes on all owners of chunks.

    The argument is ``createIndexesRequest``, whose ``indexes`` are documents; see `REQUEST`. Once begun, ``collInfo``
    has the UUID of the collection, and ``existing`` the index names of each owner before: ``[{shard, names}]``. After a
    failure, ``replies`` has the owners' raw replies: ``[{shard, reply}]``.
    """

    operation_type: ClassVar[str] = "createIndexes"
    lock_seconds_max: ClassVar[float] = inf  # as long as another command builds the same index
    _creation: IndexCreation

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as its base
        super().__init__(*args, **options)
        self.opid = new_opid()
        self._killed = trio.Event()
        max_time_ms = self._command.get("maxTimeMS")
        if self.phase is None and isinstance(max_time_ms, int | float) and max_time_ms > 0:
            # The client has received MaxTimeMSExpired by then, so this must not begin once the other command ends.
            self.beginning.deadline = trio.current_time() + max_time_ms / 1000

    @property
    def locks(self) -> list[str]:
        """The locks of the indexes; see the module."""
        return [index_lock(self.namespace, name) for name in sorted(self._requested_names)]

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Register for drops and renames, after waiting for a rename of the collection."""
        async with self.context.index_creations.entered(str(self.namespace)) as self._creation:
            yield

    def kill(self) -> None:
        """Undo the change and end the builds that have begun."""
        super().kill()
        self._killed.set()

    async def run(self) -> dict[str, Any]:
        """Build the indexes; return each owner's reply or error under ``shards``.

        Raises:
            CommandError: StaleConfig, the collection is not sharded, or not the one in which building began; or an
                owner or the config servers could not be reached, or an owner has lost an index meanwhile.
        """
        table = await self._table()
        owners = IndexOwners(self.context, self.namespace, table)
        if self.phase != UNDO:
            outcomes: Mapping[str, Outcome] = {shard: {} for shard in table.shards}
            if not (self._creation.is_aborted or self._killed.is_set()):
                outcomes = await self._build_unless_killed(owners, table)
            if self.phase is not None:
                raise_outage(outcomes)
            outcomes = self._unless_aborted(outcomes, table)
            replies = {shard: reply_of(outcome) for shard, outcome in sorted(outcomes.items())}
            if self.phase is None:
                return {"shards": replies}
            if not any(isinstance(each, CommandError) for each in outcomes.values()):
                await self._check_all_have_them(owners)
                return {"shards": await self._with_write_concern(owners, replies)}
            told = [{"shard": shard, "reply": encode_document(reply)} for shard, reply in replies.items()]
            await self.enter_phase(UNDO, **{_REPLIES: told})
        self._creation.decided.set()
        await self._undo(owners)
        return {"shards": {each["shard"]: raw_document(bytes(each["reply"])) for each in self.arguments[_REPLIES]}}

    async def _table(self) -> RoutingTable:
        table = await self.read_routing()
        begun = self.arguments.get(COLLECTION)
        if table is None or (begun is not None and UUID(bytes=bytes(begun["uuid"])) != table.collection.uuid):
            self.must_finish = False
            raise CommandError(
                ErrorCode.StaleConfig,
                f"collection {self.namespace} is not the sharded one whose indexes were to be created",
                extra={"ns": str(self.namespace)},
            )
        return table

    async def _begin(self, table: RoutingTable, existing: Mapping[str, Sequence[Index]]) -> None:
        names = [{"shard": shard, "names": sorted(names_of(indexes))} for shard, indexes in sorted(existing.items())]
        await self.enter_phase(
            BUILD, **{COLLECTION: {"uuid": Binary.from_uuid(table.collection.uuid)}, _EXISTING: names}
        )
        self.must_finish = True

    async def _build_unless_killed(self, owners: IndexOwners, table: RoutingTable) -> dict[str, Outcome]:
        """Run `_build`, and end its builds if this is killed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_builds_when_killed, owners)
            try:
                result: dict[str, Outcome] | BackendError | CommandError = await self._build(owners, table)
            except (BackendError, CommandError) as error:
                result = error  # a nursery would wrap it
            nursery.cancel_scope.cancel()
        if isinstance(result, Exception):
            raise result
        return result

    async def _end_builds_when_killed(self, owners: IndexOwners) -> None:
        await self._killed.wait()
        await self._creation.decided.wait()
        while True:
            try:
                await end_builds(owners, self.namespace, self._creation)
            except CommandError as error:
                logger.info("Could not end the builds of a killed command", error=str(error))
            await trio.sleep(ROUND_SECONDS)

    async def _build(self, owners: IndexOwners, table: RoutingTable) -> dict[str, Outcome]:
        """Return the outcomes of all owners, or only of those that may refuse if one of them does."""
        existing = await owners.indexes()
        is_client_waiting = self.phase is None
        if is_client_waiting and any(self._requested_names - names_of(indexes) for indexes in existing.values()):
            await self._begin(table, existing)
        if self.phase is not None:
            self._creation.building = {shard: self._requested_names - had for shard, had in self._before.items()}
        self._creation.decided.set()
        command = self._command
        if not is_client_waiting:
            command.pop("maxTimeMS", None)  # its client has gone, or has waited longer than that
        first = {shard for shard, indexes in existing.items() if self._may_conflict(indexes)}
        outcomes = await owners.change(command, first)
        if any(isinstance(each, CommandError) for each in outcomes.values()):
            return outcomes
        return outcomes | await owners.change(command, without=first)

    def _unless_aborted(self, outcomes: Mapping[str, Outcome], table: RoutingTable) -> Mapping[str, Outcome]:
        """Replace the outcomes after a drop or a kill.

        If a drop found the indexes, successful outcomes become IndexBuildAborted, as if it had found them being built
        on all owners. If a user killed the command, all outcomes become Interrupted, because the kill caused the
        owners' replies.
        """
        if self._killed.is_set():
            interrupted = CommandError(ErrorCode.Interrupted, "operation was interrupted")
            return dict.fromkeys(outcomes, interrupted)
        if not self._creation.is_aborted:
            return outcomes
        aborted = CommandError(
            ErrorCode.IndexBuildAborted,
            f"Index build failed: Collection {self.namespace} ( {table.collection.uuid} ) :: caused by :: "
            "dropIndexes command",
        )
        return {shard: each if isinstance(each, CommandError) else aborted for shard, each in outcomes.items()}

    async def _check_all_have_them(self, owners: IndexOwners) -> None:
        """Check that no owner has lost an index in a failover. After an error another attempt builds it again."""
        indexes = {shard: names_of(found) for shard, found in (await owners.lasting_indexes()).items()}
        everywhere = set.intersection(*indexes.values())
        for shard, names in indexes.items():
            lost = (self._requested_names & names) - everywhere
            if lost:
                raise CommandError(
                    ErrorCode.InterruptedDueToReplStateChange,
                    f"not all owners of {self.namespace} have what shard {shard} has: {', '.join(sorted(lost))}",
                )

    async def _with_write_concern(
        self, owners: IndexOwners, replies: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return the replies, with errors if the client's write concern exceeds a majority and is not met."""
        concern = self._command_as_given.get(_WRITE_CONCERN)
        if not isinstance(concern, dict) or concern.get("w") in _MET_BY_MAJORITY:
            return dict(replies)
        outcomes = await owners.ask({**self._command, _WRITE_CONCERN: concern})
        raise_outage(outcomes)
        failures = {
            shard: {"writeConcernError": outcome["writeConcernError"]}
            for shard, outcome in outcomes.items()
            if not isinstance(outcome, CommandError) and "writeConcernError" in outcome
        }
        return {shard: {**reply, **failures.get(shard, {})} for shard, reply in replies.items()}

    async def _undo(self, owners: IndexOwners) -> None:
        """Drop the new indexes on all shards."""
        before = self._before
        anywhere: set[str] = set().union(*before.values())

        def unwanted(shard: str, indexes: Sequence[Index]) -> Set[str]:
            # A shard that got its first chunk meanwhile has the donor's indexes.
            return (self._requested_names & names_of(indexes)) - before.get(shard, anywhere)

        for shard, outcome in (await owners.drop(unwanted)).items():
            if isinstance(outcome, CommandError) and outcome.code != ErrorCode.IndexNotFound:
                logger.warning(
                    "Indexes stay that could not be built on all shards",
                    namespace=str(self.namespace),
                    shard=shard,
                    indexes=sorted(self._requested_names),
                    error=str(outcome),
                )

    def _may_conflict(self, indexes: Sequence[Index]) -> bool:
        """Whether a shard may refuse an index because it has a different one with the same name or key.

        Only mongod knows whether omitted or differently written options make a difference.
        """
        return any(
            (new.get("name") == old["name"] or new.get("key") == old["key"]) and _without_version(new) != old
            for new in self._requested
            for old in map(_without_version, indexes)
        )

    @property
    def _before(self) -> dict[str, set[str]]:
        """The names of the indexes that each owner had when building began."""
        return {each["shard"]: set(each["names"]) for each in self.arguments[_EXISTING]}

    @property
    def _command_as_given(self) -> dict[str, Any]:
        return decode_exactly(bytes(self.arguments[REQUEST]))

    @property
    def _command(self) -> dict[str, Any]:
        """The command for an owner; `IndexOwners` adds the write concern."""
        request = self._command_as_given
        for name in ("createIndexes", _WRITE_CONCERN):
            request.pop(name, None)
        bypass = {BYPASS: True} if self.may_bypass else {}
        return {"createIndexes": self.namespace.collection, **request, **bypass}

    @property
    def _requested(self) -> list[Index]:
        indexes: list[Index] = self._command_as_given["indexes"]
        return indexes

    @property
    def _requested_names(self) -> set[str]:
        names = (index.get("name") for index in self._requested)
        return {name for name in names if is_string(name)}


def _without_version(index: Index) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name != "v"}
