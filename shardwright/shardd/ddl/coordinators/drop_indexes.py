"""``dropIndexes`` on all shards that have a collection (``_shardsvrDropIndexes``).

A shard may lack an index that another one has. Whether all owners answer is found out before any of them drops; then
they are asked until all have.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.ddl.coordinators.index_change import IndexChange
from shardwright.shardd.ddl.coordinators.index_owners import (
    IndexOwners,
    Outcome,
    raise_outage,
    raise_refusal_of_some,
    reply_of,
)
from shardwright.shardd.local_mongod.local_collections import change
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.reply_times import TIMES

DROP: Final = "dropIndexes"

OF_MEASUREMENTS: Final = IS_TIME_SERIES_NAMESPACE.decode()
"""The argument that says that the client named a time-series collection, of which this one has the buckets."""

_COLLECTION: Final = "collInfo"


class DropIndexes(IndexChange):
    """The arguments are ``index``, as in the command (a name, a key, a list of names, or ``*``), and `OF_MEASUREMENTS`.

    Once begun, ``collInfo`` has the UUID of the sharded collection. An unsharded one is changed in one step of its
    mongod, for which there is nothing to persist.
    """

    operation_type: ClassVar[str] = "dropIndexes"

    async def run(self) -> dict[str, Any]:
        """Drop the indexes; ``raw`` has the replies of all shards.

        Raises:
            CommandError: IndexNotFound, no shard has them; or a shard's error, with ``raw``.
        """
        catalog = await self.context.catalog()
        table, shards = await self.read_routing(), await catalog.shards()
        is_first = self.phase is None
        if table is None:
            outcomes = await self._drop_here() if is_first else {}
        else:
            outcomes = await self._drop(table)
        raw = {shards[shard].host: reply_of(outcome) for shard, outcome in sorted(outcomes.items())}
        error = _error_of_all(outcomes)
        # An earlier attempt may have dropped them.
        if error is not None and (is_first or error.code != ErrorCode.IndexNotFound):
            raise CommandError(error.code, error.message, labels=error.labels, extra={**error.extra, "raw": raw})
        return {"raw": raw}

    async def _drop(self, table: RoutingTable) -> dict[str, Outcome]:
        owners, uuid = IndexOwners(self.context, self.namespace, table), table.collection.uuid
        # The writes of users may have been blocked since some owners have dropped.
        bypass = {BYPASS: True} if self.may_bypass or self.phase is not None else {}
        if self.phase is None:
            await owners.indexes()
            await self.enter_phase(DROP, **{_COLLECTION: {"uuid": Binary.from_uuid(uuid)}})
        elif uuid != UUID(bytes=bytes(self.arguments[_COLLECTION]["uuid"])):
            return {}
        self.must_finish = True
        outcomes = await owners.ask({**self._command, **bypass})
        raise_outage(outcomes)
        raise_refusal_of_some(outcomes)
        self.must_finish = False
        return outcomes

    async def _drop_here(self) -> dict[str, Outcome]:
        me = self.context.require_identity().shard_name
        try:
            reply = await change(self.context.mongod, self.namespace, self._command)
        except CommandError as error:
            return {me: error}
        return {me: {name: value for name, value in reply.items() if name not in TIMES}}

    @property
    def _command(self) -> dict[str, Any]:
        given = {name: self.arguments[name] for name in ("index", OF_MEASUREMENTS) if name in self.arguments}
        return {"dropIndexes": self.namespace.collection, **given}


def _error_of_all(outcomes: Mapping[str, Outcome]) -> CommandError | None:
    """The error of the whole command; None if the indexes are gone, which not all shards need to have had."""
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, CommandError)]
    counted = [error for error in errors if error.code != ErrorCode.IndexNotFound or len(errors) == len(outcomes)]
    return counted[0] if counted else None
