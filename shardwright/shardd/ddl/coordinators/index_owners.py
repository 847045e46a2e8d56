"""The shards that own chunks of a collection, as those whose indexes change together."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import trio

from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
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
"""How often a command is sent while chunks move, before the change pauses."""

DROP_REFUSED_FOR_NOW: Final = frozenset(
    {
        *(ErrorCode.LockBusy, ErrorCode.LockTimeout, ErrorCode.ReshardCollectionInProgress),
        ErrorCode.UserWritesBlocked,  # and not at all on the owners where they were blocked later
    }
)
"""Errors with which a shard refuses to drop an index that it drops later."""

_OUTAGES: Final = (Category.RETRYABLE, Category.NETWORK_TIMEOUT)
_NO_ANSWER: Final = frozenset({ErrorCode.FailedToSatisfyReadPreference, ErrorCode.WriteConcernFailed})


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

    async def indexes(self) -> dict[str, list[Index]]:
        """The indexes of the collection on each owner.

        Raises:
            CommandError: as `ask`; or an owner could not be reached.
        """
        found: dict[str, list[Index]] = {}
        for shard, outcome in (await self.ask({"listIndexes": self._namespace.collection})).items():
            if not isinstance(outcome, CommandError):
                found[shard] = outcome["cursor"]["firstBatch"]
            elif outcome.code == ErrorCode.NamespaceNotFound:
                found[shard] = []
            else:
                raise outcome
        return found

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
        if isinstance(outcome, CommandError) and is_outage(outcome):
            raise outcome


def raise_refusal_of_some(outcomes: Mapping[str, Outcome]) -> None:
    """Raise a refusal of a drop that passes, unless all shards refuse it so: the others may have dropped already."""
    refusals = [
        each for each in outcomes.values() if isinstance(each, CommandError) and each.code in DROP_REFUSED_FOR_NOW
    ]
    if len(refusals) < len(outcomes):
        for refusal in refusals:
            raise refusal


def is_outage(error: CommandError) -> bool:
    """Whether a command may have been carried out all the same, or can be when it is sent again."""
    return error.code in _NO_ANSWER or any(has_category(error.code, category) for category in _OUTAGES)


def reply_of(outcome: Outcome) -> dict[str, Any]:
    """The reply that an outcome is, or would be."""
    return outcome.reply() if isinstance(outcome, CommandError) else outcome


def _is_stale(error: CommandError) -> bool:
    return has_category(error.code, Category.STALE_ROUTING)
