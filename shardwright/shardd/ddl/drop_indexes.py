"""``dropIndexes`` on all shards that have a collection (``_shardsvrDropIndexes``).

A shard may lack an index that another one has. No shard drops an index before all of them have listed theirs; then the
drop is repeated until none has one of the indexes. A creation that builds only these indexes is undone first, as a
mongod ends their build, so that no owner builds one after the drop.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, Final
from uuid import UUID

import trio
from bson.binary import Binary

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.ddl_locks import LOCK_SECONDS_MAX, IndexCreation
from shardwright.shardd.context.shard_context import by_hosts
from shardwright.shardd.ddl.coordinator import COLLECTION
from shardwright.shardd.ddl.index_owners import (
    ROUND_SECONDS,
    Index,
    IndexChange,
    IndexOwners,
    Outcome,
    end_builds,
    index_lock,
    is_unsure,
    names_of_all,
    raise_outage,
    raise_refusal_for_now,
    reply_of,
)
from shardwright.shardd.local_mongod.local_collections import change
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string

DROP: Final = "dropIndexes"

OF_MEASUREMENTS: Final = IS_TIME_SERIES_NAMESPACE.decode()
"""The argument that marks a client's request as naming the time-series collection of these buckets."""

_NAMES: Final = "indexNames"

Outcomes = dict[str, Outcome]
"""The outcome of each shard by its id."""

Raw = dict[str, dict[str, Any]]
"""The replies by the hosts of the shards."""


class DropIndexes(IndexChange):
    """Drops indexes on all owners of chunks.

    The arguments are ``index``, as in the command (a name, a key, a list of names, or ``*``), and `OF_MEASUREMENTS`.
    Once begun, ``collInfo`` has the UUID of the sharded collection, and ``indexNames`` the names to drop. For an
    unsharded collection there is nothing to persist, because its mongod changes it in one step.
    """

    operation_type: ClassVar[str] = "dropIndexes"

    async def run(self) -> dict[str, Any]:
        """Drop the indexes; ``raw`` has the replies of all shards, also in IndexNotFound and other errors."""
        table = await self.read_routing()
        is_first = self.phase is None
        if table is None:
            outcomes, raw = await self._drop_here() if is_first else ({}, {})
        else:
            outcomes, raw = await self._drop(table)
        error = _error_of_all(outcomes)
        # An earlier attempt may have dropped them.
        if error is not None and (is_first or error.code != ErrorCode.IndexNotFound):
            raise CommandError(error.code, error.message, labels=error.labels, extra={**error.extra, "raw": raw})
        return {"raw": raw}

    async def _drop(self, table: RoutingTable) -> tuple[Outcomes, Raw]:
        owners, uuid = IndexOwners(self.context, self.namespace, table), table.collection.uuid
        if self.phase is not None and uuid != UUID(bytes=bytes(self.arguments[COLLECTION]["uuid"])):
            return {}, {}
        indexes = await self._listed(owners)
        names = self._names(indexes, table)
        creations = self.context.index_creations.of(str(self.namespace))
        for creation in creations:
            await creation.decided.wait()
        known = names_of_all(indexes).union(*(creation.names for creation in creations))
        if self.phase is None and not self._drops_all and not (names and names <= known):
            return await self._with_raw(await owners.change(self._command | self._bypass))  # which refuse it
        aborted = self._abort(creations, names)
        names = names.union(*(creation.names for creation in aborted))
        await self._wait_ended(owners, aborted)
        async with self.context.ddl_locks.hold_all([index_lock(self.namespace, name) for name in sorted(names)]):
            return await self._drop_named(owners, table, names, indexes if aborted else {})

    async def _drop_named(
        self, owners: IndexOwners, table: RoutingTable, names: Set[str], aborted: Mapping[str, Sequence[Index]]
    ) -> tuple[Outcomes, Raw]:
        """Drop the indexes whose locks are held.

        Args:
            aborted: the indexes of each owner before creations were aborted, if any were.
        """
        bypass, is_first = self._bypass, self.phase is None
        if is_first:
            indexes = await self._listed(owners)
            names = self._names(indexes, table) & names
            refusal = self._refusal(await owners.indexes(), names, table)
            if refusal is not None:
                return await self._with_raw(dict.fromkeys(indexes, refusal))
            uuid = Binary.from_uuid(table.collection.uuid)
            await self.enter_phase(DROP, **{COLLECTION: {"uuid": uuid}, _NAMES: sorted(names)})
        self.must_finish = True
        outcomes = await owners.change(self._command | bypass)
        raise_outage(outcomes)
        raise_refusal_for_now(outcomes, of_some=True)
        errors = {shard: each for shard, each in outcomes.items() if isinstance(each, CommandError)}
        is_partly_done = aborted or not is_first or len(errors) < len(outcomes) or self._drops_all
        is_partly_done = is_partly_done or any(map(is_unsure, names))  # the owners do not know what to drop
        if all(each.code == ErrorCode.IndexNotFound for each in errors.values()) and is_partly_done:
            # An owner drops none of several indexes if it lacks one, and none with ``*`` while another is being built.
            outcomes |= await owners.drop(lambda _, indexes: self._unwanted(indexes, names, table))
            outcomes |= {
                shard: {"nIndexesWas": len(aborted.get(shard, ())), "ok": 1.0}
                for shard in (errors if aborted or self._drops_all else ())
                if outcomes[shard] is errors[shard]
            }
        # An error of this leads to another attempt, because the drop has been made.
        result = await self._with_raw(outcomes)
        self.must_finish = False
        return result

    async def _with_raw(self, outcomes: Outcomes) -> tuple[Outcomes, Raw]:
        replies = {shard: reply_of(outcome) for shard, outcome in outcomes.items()}
        return outcomes, await by_hosts(self.context, replies)

    async def _listed(self, owners: IndexOwners) -> dict[str, list[Index]]:
        """Return the indexes of each owner; keys of measurements' indexes are in the client's terms."""
        of_measurements = {name: self.arguments[name] for name in (OF_MEASUREMENTS,) if name in self.arguments}
        return await owners.indexes(**of_measurements)

    def _refusal(
        self, indexes: Mapping[str, Sequence[Index]], names: Set[str], table: RoutingTable
    ) -> CommandError | None:
        """Return CannotDropShardKeyIndex if the drop would leave an owner without an index for the shard key.

        It applies to all owners, before any of them drops. Indexes in creation do not count, because they may be
        undone.
        """
        creations = self.context.index_creations.of(str(self.namespace))
        unsure = names | frozenset().union(*(each.names for each in creations))
        supporting = [
            {index["name"] for index in each if table.key_pattern.is_supported_by_index(index)}
            for each in indexes.values()
        ]
        if self._drops_all or not any(each & names and each <= unsure for each in supporting):
            return None
        return CommandError(
            ErrorCode.CannotDropShardKeyIndex, "Cannot drop the only compatible index for this collection's shard key"
        )

    def _names(self, indexes: Mapping[str, Sequence[Index]], table: RoutingTable) -> frozenset[str]:
        """Return the names of the indexes to drop; a resumed drop keeps the persisted names."""
        if _NAMES in self.arguments:
            return frozenset(self.arguments[_NAMES])
        wanted = self.arguments["index"]
        if self._drops_all:
            every = names_of_all(indexes)
            return frozenset().union(*(self._unwanted(each, every, table) for each in indexes.values()))
        if isinstance(wanted, dict):
            key = list(wanted.items())
            return frozenset(
                index["name"] for each in indexes.values() for index in each if list(index["key"].items()) == key
            )
        return frozenset(filter(is_string, wanted if isinstance(wanted, list) else [wanted]))

    def _unwanted(self, indexes: Sequence[Index], names: Set[str], table: RoutingTable) -> set[str]:
        """Return the names of an owner's indexes that have to be dropped."""
        return {
            index["name"]
            for index in indexes
            if index["name"] in names
            and not (self._drops_all and (index["name"] == "_id_" or table.key_pattern.is_supported_by_index(index)))
        }

    @property
    def _bypass(self) -> dict[str, Any]:
        """The bypass of the user write block. A begun drop has it, because users may have been blocked since."""
        return {BYPASS: True} if self.may_bypass or self.phase is not None else {}

    @property
    def _drops_all(self) -> bool:
        return bool(self.arguments["index"] == "*")

    def _abort(self, creations: Iterable[IndexCreation], names: Set[str]) -> list[IndexCreation]:
        """Mark the creations that build only these indexes as aborted, and return them.

        Raises IndexNotFound, as on a mongod, if one of these is being built together with others.
        """
        found = [each for each in creations if each.names and (self._drops_all or each.names & names)]
        for each in found:
            if not (self._drops_all or each.names <= names):
                unfinished = min(each.names & names)
                raise CommandError(ErrorCode.IndexNotFound, f"can't drop unfinished index with name: {unfinished}")
        for each in found:
            each.is_aborted = True
        return found

    async def _wait_ended(self, owners: IndexOwners, creations: Sequence[IndexCreation]) -> None:
        """Wait until aborted creations have been undone, and end their builds on owners that have begun them.

        Raises LockBusy if one did not end in time.
        """
        with trio.move_on_after(LOCK_SECONDS_MAX) as patience:
            for creation in creations:
                while not creation.ended.is_set():
                    await end_builds(owners, self.namespace, creation)
                    with trio.move_on_after(ROUND_SECONDS):
                        await creation.ended.wait()
        if patience.cancelled_caught:
            raise CommandError(ErrorCode.LockBusy, f"the creation of an index of {self.namespace} does not end")

    async def _drop_here(self) -> tuple[Outcomes, Raw]:
        me = self.context.require_identity().shard_name
        # This may fail, so it comes before the drop: a repetition of a made drop gets IndexNotFound.
        (host,) = await by_hosts(self.context, {me: None})
        outcome: Outcome
        try:
            reply = await change(self.context.mongod, self.namespace, self._command)
        except CommandError as error:
            outcome = error
        else:
            outcome = {name: value for name, value in reply.items() if name not in TIMES}
        return {me: outcome}, {host: reply_of(outcome)}

    @property
    def _command(self) -> dict[str, Any]:
        given = {name: self.arguments[name] for name in ("index", OF_MEASUREMENTS) if name in self.arguments}
        return {"dropIndexes": self.namespace.collection, **given}


def _error_of_all(outcomes: Mapping[str, Outcome]) -> CommandError | None:
    """Return the error of the whole command; None if the indexes are gone, even if some shards lacked them before."""
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, CommandError)]
    counted = [error for error in errors if error.code != ErrorCode.IndexNotFound or len(errors) == len(outcomes)]
    return counted[0] if counted else None
