"""The shards that own chunks of a collection, as those whose indexes change together."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, Final

import trio

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.coordinators.coordinator import is_outage
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.reply_times import TIMES

Outcome = dict[str, Any] | CommandError
"""What a shard has answered to a command: its reply without the gossiped times, or an error."""

Index = Mapping[str, Any]
"""The specification of an index, as ``listIndexes`` shows it."""

ATTEMPTS_MAX: Final = 10
"""How often a command is sent while chunks move, or a drop while indexes come back, before the change pauses."""

_DROP_REFUSED_FOR_NOW: Final = frozenset(
    {
        *(ErrorCode.LockBusy, ErrorCode.LockTimeout, ErrorCode.ReshardCollectionInProgress),
        ErrorCode.UserWritesBlocked,  # and not at all on the owners where they were blocked later
    }
)
"""Errors with which a shard refuses to drop an index that it drops later."""

_SHOWN_NAME_MAX: Final = 200
"""So many characters of an index's name ``config.locks`` shows."""


class IndexOwners:
    """The owners of a sharded collection, found again for each command.

    Args:
        context: this shard daemon's context.
        namespace: the collection.
        table: its routing table, as it has just been read.
    """

    def __init__(self, context: ShardContext, namespace: Namespace, table: RoutingTable) -> None:
        self._context = context
        self._namespace = namespace
        self._table = table

    async def change(
        self, command: Mapping[str, Any], only: Set[str] | None = None, *, without: Set[str] = frozenset()
    ) -> dict[str, Outcome]:
        """As `ask`, for a change that must not be lost: a shard has made it once its majority has."""
        outcomes = await self.ask({**command, "writeConcern": MAJORITY}, only, without=without)
        return {shard: _if_replicated(shard, outcome) for shard, outcome in outcomes.items()}

    async def ask(
        self, command: Mapping[str, Any], only: Set[str] | None = None, *, without: Set[str] = frozenset()
    ) -> dict[str, Outcome]:
        """Send a command to the owners; returns the outcomes by shard.

        Args:
            command: a command that may be repeated, to which the version of the collection is added.
            only: the owners to send it to; None for all.
            without: owners to leave out.

        Raises:
            CommandError: StaleConfig, the collection is not the same any more, or its chunks do not stand still; or the
                config servers could not be reached.
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
        """The indexes of the collection on each owner, also those that are being built.

        Args:
            listing: further arguments of ``listIndexes``.

        Raises:
            CommandError: as `ask`; or an owner could not be reached.
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
        """As `indexes`, without what a failover since an earlier command to an owner could still undo.

        A repeated command finds done what the first one has done, and does not wait until that is replicated.
        """
        note = {"appendOplogNote": 1, "data": {"msg": f"indexes of {self._namespace}"}, "writeConcern": MAJORITY}
        for shard in sorted(self._table.shards):
            replicated = _if_replicated(shard, await send_to_shard(self._context, shard, "admin", note))
            if isinstance(replicated, CommandError):
                raise replicated
        return await self.indexes()

    async def drop(self, unwanted: Callable[[str, Sequence[Index]], Set[str]]) -> dict[str, Outcome]:
        """Drop indexes until no owner has them, or refuses to drop them; returns what the owners said last.

        It is not refused while the writes of users are blocked, since it ends what has begun before.

        Args:
            unwanted: tells which of a shard's indexes are to be dropped, by name.

        Raises:
            CommandError: an owner could not be reached, or does not drop them now.
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
    """Raise the first error that says nothing of the change itself: a shard was not reached, or lost its primary."""
    for outcome in outcomes.values():
        if isinstance(outcome, CommandError) and is_outage(outcome.code):
            raise outcome


def raise_refusal_for_now(outcomes: Mapping[str, Outcome], *, of_some: bool = False) -> None:
    """Raise the first refusal of a drop that passes.

    Args:
        outcomes: of the drop.
        of_some: only if not all shards refuse it so: the others may have dropped already.
    """
    refusals = [
        each for each in outcomes.values() if isinstance(each, CommandError) and each.code in _DROP_REFUSED_FOR_NOW
    ]
    if refusals and not (of_some and len(refusals) == len(outcomes)):
        raise refusals[0]


def reply_of(outcome: Outcome) -> dict[str, Any]:
    """The reply that an outcome is, or would be."""
    return outcome.reply() if isinstance(outcome, CommandError) else outcome


def names_of(indexes: Iterable[Index]) -> set[str]:
    """The names of indexes."""
    return {index["name"] for index in indexes}


def is_unsure(name: str) -> bool:
    """Whether an index may have a name that is not UTF-8, of which only the replaced form is known."""
    return "\ufffd" in name


def namings(indexes: Iterable[Index], names: Set[str]) -> list[object]:
    """How ``dropIndexes`` names indexes: together by their names, but by its key one whose name is unsure."""
    sure = sorted(name for name in names if not is_unsure(name))
    keys = [index["key"] for index in indexes if index["name"] in names and is_unsure(index["name"])]
    return [*([sure] if sure else ()), *keys]


def names_of_all(indexes: Mapping[str, Iterable[Index]]) -> set[str]:
    """The names of the indexes that any owner has."""
    return {index["name"] for each in indexes.values() for index in each}


def index_lock(namespace: Namespace, name: str) -> str:
    """The name of the lock for the creations and drops of one index, whose own name may have megabytes."""
    if len(name) > _SHOWN_NAME_MAX:
        name = f"{name[:_SHOWN_NAME_MAX]}… ({sha256(name.encode(errors='surrogatepass')).hexdigest()})"
    return f"index {name} of {namespace}"


def _if_replicated(shard: str, outcome: Outcome) -> Outcome:
    """The outcome of a change; one that is not known to be replicated may be lost, like one without an answer."""
    if isinstance(outcome, CommandError) or "writeConcernError" not in outcome:
        return outcome
    failure = outcome["writeConcernError"].get("errmsg")
    return CommandError(ErrorCode.WriteConcernFailed, f"not replicated on shard {shard}: {failure}")


def _is_stale(error: CommandError) -> bool:
    """Whether the owners have to be found again; one may have been removed once its chunks had moved."""
    return error.code == ErrorCode.ShardNotFound or has_category(error.code, Category.STALE_ROUTING)
