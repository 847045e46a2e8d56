"""Index changes on all shards that own chunks of a collection.

`IndexOwners` sends commands to the owners, with the collection's version, and refreshes the owners if chunks have
moved. `IndexChange` is the base of the coordinators that create and drop indexes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, ClassVar, Final

import trio

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.ddl_locks import IndexCreation
from shardwright.shardd.context.shard_context import ShardContext, send_to_shard
from shardwright.shardd.ddl.coordinator import Coordinator, is_outage
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

DIGEST: Final = "digest"


class IndexChange(Coordinator):
    """A change of a collection's indexes. Unequal changes wait for each other's locks, as in MongoDB.

    The argument ``digest`` identifies equal changes. Each shard's mongod checks whether user writes are blocked.
    """

    is_user_write: ClassVar[bool] = False

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as its base
        super().__init__(*args, **options)
        if DIGEST not in self.arguments:
            asked = {**self.arguments, BYPASS: self.may_bypass}
            self.arguments[DIGEST] = sha256(encode_document(asked)).hexdigest()

    @property
    def id(self) -> dict[str, str]:
        """The ``_id`` of its document: only equal commands are one change."""
        return {**super().id, DIGEST: self.arguments[DIGEST]}


Outcome = dict[str, Any] | CommandError
"""A shard's reply to a command without the gossiped times, or an error."""

Index = Mapping[str, Any]
"""The specification of an index, as ``listIndexes`` shows it."""

ATTEMPTS_MAX: Final = 10
"""Attempts to send a command while chunks move, or to drop indexes that are created again, before a pause."""

_DROP_REFUSED_FOR_NOW: Final = frozenset(
    {
        *(ErrorCode.LockBusy, ErrorCode.LockTimeout, ErrorCode.ReshardCollectionInProgress),
        ErrorCode.UserWritesBlocked,  # and not at all on the owners where they were blocked later
    }
)
"""Errors with which a shard refuses to drop an index that it drops later."""

_SHOWN_NAME_MAX: Final = 200
"""Characters of an index's name in ``config.locks``."""


class IndexOwners:
    """The owners of a sharded collection, refreshed for each command.

    Args:
        table: the collection's routing table, just read.
    """

    def __init__(self, context: ShardContext, namespace: Namespace, table: RoutingTable) -> None:
        self._context = context
        self._namespace = namespace
        self._table = table

    async def change(
        self, command: Mapping[str, Any], only: Set[str] | None = None, *, without: Set[str] = frozenset()
    ) -> dict[str, Outcome]:
        """Run `ask` for a change that must not be lost; a shard succeeds once its majority has the change."""
        outcomes = await self.ask({**command, "writeConcern": MAJORITY}, only, without=without)
        return {shard: _if_replicated(shard, outcome) for shard, outcome in outcomes.items()}

    async def ask(
        self, command: Mapping[str, Any], only: Set[str] | None = None, *, without: Set[str] = frozenset()
    ) -> dict[str, Outcome]:
        """Send a command to the owners; return the outcomes by shard.

        Args:
            command: a repeatable command; the version of the collection is added.
            only: the owners to send it to; None for all.

        Raises:
            CommandError: StaleConfig, the collection has been replaced, or its chunks keep moving; or the config
                servers could not be reached.
        """
        for _ in range(ATTEMPTS_MAX):
            owners = self._table.shards
            outcomes = await self._ask(command, (owners if only is None else owners & only) - without)
            stale = [each for each in outcomes.values() if isinstance(each, CommandError) and _is_stale(each)]
            if not stale:
                return outcomes
            await self._read_again(stale[0])
        raise stale[0]

    async def indexes(self, **listing: object) -> dict[str, list[Index]]:
        """List the indexes of the collection on each owner, including unfinished builds.

        Args:
            listing: further arguments of ``listIndexes``.

        Raises:
            CommandError: as for `ask`; or an owner could not be reached.
        """
        found: dict[str, list[Index]] = {}
        for shard, outcome in (await self.ask({"listIndexes": self._namespace.collection, **listing})).items():
            if not isinstance(outcome, CommandError):
                found[shard] = outcome["cursor"]["firstBatch"]
            elif outcome.code == ErrorCode.NamespaceNotFound:
                found[shard] = []
            else:
                raise outcome
        return found

    async def lasting_indexes(self) -> dict[str, list[Index]]:
        """List as `indexes` does, once a majority of each owner has the changes of earlier commands.

        A repeated command without effect does not wait until the first one's changes are replicated.
        """
        note = {"appendOplogNote": 1, "data": {"msg": f"indexes of {self._namespace}"}, "writeConcern": MAJORITY}
        for shard in sorted(self._table.shards):
            replicated = _if_replicated(shard, await send_to_shard(self._context, shard, "admin", note))
            if isinstance(replicated, CommandError):
                raise replicated
        return await self.indexes()

    async def drop(self, unwanted: Callable[[str, Sequence[Index]], Set[str]]) -> dict[str, Outcome]:
        """Drop indexes until each owner lacks them or refuses; return the owners' last outcomes.

        The drop bypasses the block of user writes, because it undoes or completes a change that began earlier.

        Args:
            unwanted: returns the names of a shard's indexes to drop.

        Raises:
            CommandError: an owner could not be reached, or refuses for now.
        """
        outcomes: dict[str, Outcome] = {}
        refusing: set[str] = set()
        for _ in range(ATTEMPTS_MAX):
            indexes = await self.lasting_indexes()
            left = {shard: names for shard, each in indexes.items() if (names := unwanted(shard, each))}
            if left.keys() <= refusing:
                return outcomes
            for shard, names in left.items():
                for named in namings(indexes[shard], names):
                    drop = {"dropIndexes": self._namespace.collection, "index": named, BYPASS: True}
                    outcomes |= await self.change(drop, {shard})
            raise_outage(outcomes)
            raise_refusal_for_now(outcomes)
            refusing = {
                shard
                for shard, each in outcomes.items()
                if isinstance(each, CommandError)
                and (each.code != ErrorCode.IndexNotFound or all(map(is_unsure, left.get(shard, ()))))
            }
        raise CommandError(ErrorCode.LockBusy, f"indexes of {self._namespace} come back as soon as they are dropped")

    async def _ask(self, command: Mapping[str, Any], shards: Iterable[str]) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}

        async def send(shard: str) -> None:
            versioned = {**command, "shardVersion": self._table.shard_version(shard).to_document()}
            try:
                reply = await send_to_shard(self._context, shard, self._namespace.db, versioned)
            except CommandError as error:
                outcomes[shard] = error
            else:
                outcomes[shard] = {name: value for name, value in reply.items() if name not in TIMES}

        async with trio.open_nursery() as nursery:
            for shard in shards:
                nursery.start_soon(send, shard)
        return dict(sorted(outcomes.items()))

    async def _read_again(self, stale: CommandError) -> None:
        catalog = await self._context.catalog()
        table = await catalog.read(read_routing(str(self._namespace)))
        if table is None or table.collection.uuid != self._table.collection.uuid:
            raise stale
        self._table = table


def raise_outage(outcomes: Mapping[str, Outcome]) -> None:
    """Raise the first error that leaves the outcome unknown: a shard was unreachable, or lost its primary."""
    for outcome in outcomes.values():
        if isinstance(outcome, CommandError) and is_outage(outcome.code):
            raise outcome


def raise_refusal_for_now(outcomes: Mapping[str, Outcome], *, of_some: bool = False) -> None:
    """Raise the first transient refusal of a drop.

    Args:
        of_some: raise only if not all shards refuse, because the others may have dropped already.
    """
    refusals = [
        each for each in outcomes.values() if isinstance(each, CommandError) and each.code in _DROP_REFUSED_FOR_NOW
    ]
    if refusals and not (of_some and len(refusals) == len(outcomes)):
        raise refusals[0]


def reply_of(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as a reply document."""
    return outcome.reply() if isinstance(outcome, CommandError) else outcome


def names_of(indexes: Iterable[Index]) -> set[str]:
    """Collect the names of indexes."""
    return {index["name"] for index in indexes}


def is_unsure(name: str) -> bool:
    """Whether the index's real name may not be UTF-8, so that only its replaced form is known."""
    return "\ufffd" in name


def namings(indexes: Iterable[Index], names: Set[str]) -> list[object]:
    """Return the arguments of ``dropIndexes``: all sure names together, and the key of each index of unsure name."""
    sure = sorted(name for name in names if not is_unsure(name))
    keys = [index["key"] for index in indexes if index["name"] in names and is_unsure(index["name"])]
    return [*([sure] if sure else ()), *keys]


def names_of_all(indexes: Mapping[str, Iterable[Index]]) -> set[str]:
    """Collect the names of the indexes of all owners."""
    return {index["name"] for each in indexes.values() for index in each}


def index_lock(namespace: Namespace, name: str) -> str:
    """Name the lock for creating and dropping an index; the index's own name may have megabytes."""
    if len(name) > _SHOWN_NAME_MAX:
        name = f"{name[:_SHOWN_NAME_MAX]}… ({sha256(name.encode(errors='surrogatepass')).hexdigest()})"
    return f"index {name} of {namespace}"


def _if_replicated(shard: str, outcome: Outcome) -> Outcome:
    """Convert a change that may not be replicated to an error, because a failover could lose it."""
    if isinstance(outcome, CommandError) or "writeConcernError" not in outcome:
        return outcome
    failure = outcome["writeConcernError"].get("errmsg")
    return CommandError(ErrorCode.WriteConcernFailed, f"not replicated on shard {shard}: {failure}")


def _is_stale(error: CommandError) -> bool:
    """Whether the owners have to be refreshed; for ShardNotFound too, because an owner may have been removed."""
    return error.code == ErrorCode.ShardNotFound or has_category(error.code, Category.STALE_ROUTING)


ROUND_SECONDS: Final = 0.2
"""Pause between searches for builds that the creation has just begun."""


async def end_builds(owners: IndexOwners, namespace: Namespace, creation: IndexCreation) -> None:
    """End the builds of a creation that is undone by a drop or a kill, on the owners that have begun them.

    They are ended by ``dropIndexes``, because a mongod 6.0 may crash when its builds are killed.
    """
    for shard, indexes in (await owners.indexes()).items():
        begun = creation.building.get(shard, creation.names) & names_of(indexes)
        for named in namings(indexes, begun):
            drop = {"dropIndexes": namespace.collection, "index": named, BYPASS: True}
            await owners.ask(drop, {shard})
