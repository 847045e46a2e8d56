"""``createIndexes`` on all shards that own chunks of a collection, or on none (``_shardsvrCreateIndexes``).

Each shard validates a specification against its own indexes, and builds from its own documents. So shards that may
refuse a specification are asked first; and if a build fails on one shard, the indexes that the command has built on
others are dropped again. MongoDB 6.0, where a router sends the command to the shards, leaves them.

A build may take hours, in which other changes are not locked out: as in MongoDB, a drop of the collection or of the
index ends it, and a shard refuses an index if its own mongod would. The locks are for the indexes alone, so that what
a shard has or lacks after a failure is this command's doing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.ddl.coordinators.index_change import IndexChange
from shardwright.shardd.ddl.coordinators.index_owners import (
    DROP_REFUSED_FOR_NOW,
    Index,
    IndexOwners,
    Outcome,
    is_outage,
    raise_outage,
    reply_of,
)
from shardwright.shardd.ddl.verbatim_documents import with_verbatim
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, encode_document, is_string, raw_document

logger = get_logger("shardd.coordinators")

REQUEST: Final = "createIndexesRequest"
"""The argument with the client's command, less what says how it was sent: its bytes, which may be no valid document.

A mongod takes specifications and comments that it does not store as they are, as one with a field ``$id`` alone.
"""

BUILD: Final = "buildIndexes"
UNDO: Final = "dropBuiltIndexes"

_COLLECTION: Final = "collInfo"
_EXISTING: Final = "existing"
_REPLIES: Final = "replies"


class CreateIndexes(IndexChange):
    """The argument is ``createIndexesRequest``, whose ``indexes`` are documents; see `REQUEST`.

    Once begun, ``collInfo`` has the UUID of the collection, and ``existing`` the names of the indexes that each owner
    had before: ``[{shard, names}]``; once it has failed, ``replies`` has what the owners said: ``[{shard, reply}]``,
    in bytes, too.
    """

    operation_type: ClassVar[str] = "createIndexes"

    @property
    def locks(self) -> list[str]:
        """Those of the indexes; see the head of this file."""
        return [index_lock(self.namespace, name) for name in sorted(self._requested_names)]

    async def run(self) -> dict[str, Any]:
        """Build the indexes; returns each owner's reply under ``shards``, also if that is an error.

        Raises:
            CommandError: StaleConfig, the collection is not sharded, or not the one in which building began; or an
                owner, or the config servers, could not be reached.
        """
        table = await self._table()
        owners = IndexOwners(self.context, self.namespace, table)
        if self.phase == UNDO:
            await self._undo(owners)
            return {"shards": {each["shard"]: raw_document(bytes(each["reply"])) for each in self.arguments[_REPLIES]}}
        outcomes = await self._build(owners, table)
        replies = {shard: reply_of(outcome) for shard, outcome in sorted(outcomes.items())}
        if self.phase is None:
            return {"shards": replies}
        if any(isinstance(each, CommandError) for each in outcomes.values()):
            raise_outage(outcomes)
            told = [{"shard": shard, "reply": encode_document(reply)} for shard, reply in replies.items()]
            await self.enter_phase(UNDO, **{_REPLIES: told})
            await self._undo(owners)
        else:
            await self._follow_drops(owners)
        return {"shards": replies}

    async def _table(self) -> RoutingTable:
        table = await self.read_routing()
        begun = self.arguments.get(_COLLECTION)
        if table is None or (begun is not None and UUID(bytes=bytes(begun["uuid"])) != table.collection.uuid):
            self.must_finish = False
            raise CommandError(
                ErrorCode.StaleConfig,
                f"collection {self.namespace} is not the sharded one whose indexes were to be created",
                extra={"ns": str(self.namespace)},
            )
        return table

    async def _begin(self, table: RoutingTable, existing: Mapping[str, Sequence[Index]]) -> None:
        names = [{"shard": shard, "names": sorted(_names(indexes))} for shard, indexes in sorted(existing.items())]
        await self.enter_phase(
            BUILD, **{_COLLECTION: {"uuid": Binary.from_uuid(table.collection.uuid)}, _EXISTING: names}
        )
        self.must_finish = True

    async def _build(self, owners: IndexOwners, table: RoutingTable) -> dict[str, Outcome]:
        """The outcomes of all owners, or, if one refuses in advance, of those that may refuse."""
        raw = bytes(self.arguments[REQUEST])
        request = with_verbatim(decode_document(raw), b"indexes", raw)
        command = {"createIndexes": self.namespace.collection} | {
            name: value for name, value in request.items() if name != "createIndexes"
        }
        if self.may_bypass:
            command[BYPASS] = True
        existing = await owners.indexes()
        if self.phase is not None:
            command.pop("maxTimeMS", None)  # its client has gone, or has waited longer than that
        elif any(self._requested_names - _names(indexes) for indexes in existing.values()):
            await self._begin(table, existing)
        first = {shard for shard, indexes in existing.items() if self._may_conflict(indexes)}
        outcomes = await owners.ask(command, first)
        if any(isinstance(each, CommandError) for each in outcomes.values()):
            return outcomes
        return outcomes | await owners.ask(command, without=first)

    async def _undo(self, owners: IndexOwners) -> None:
        """Drop the indexes that no shard had before, wherever they are."""
        before = {each["shard"]: set(each["names"]) for each in self.arguments[_EXISTING]}
        anywhere: set[str] = set().union(*before.values())
        for shard, indexes in sorted((await owners.indexes()).items()):
            # One that got its first chunk meanwhile has what the donor had.
            for name in sorted((self._requested_names & _names(indexes)) - before.get(shard, anywhere)):
                await self._drop(owners, shard, name)

    async def _follow_drops(self, owners: IndexOwners) -> None:
        """Drop everywhere what a drop has found on some owners while it was still being built on others."""
        indexes = {shard: _names(found) for shard, found in (await owners.indexes()).items()}
        for name in sorted(self._requested_names):
            holders = [shard for shard, names in sorted(indexes.items()) if name in names]
            if len(holders) < len(indexes):
                for shard in holders:
                    await self._drop(owners, shard, name)

    async def _drop(self, owners: IndexOwners, shard: str, name: str) -> None:
        """Drop one index: a shard that lacks one of several drops none of them."""
        drop = {
            "dropIndexes": self.namespace.collection,
            "index": name,
            "writeConcern": MAJORITY,
            BYPASS: True,  # no write of a user: what one has asked for is undone
        }
        for outcome in (await owners.ask(drop, {shard})).values():
            if not isinstance(outcome, CommandError) or outcome.code == ErrorCode.IndexNotFound:
                continue
            if is_outage(outcome) or outcome.code in DROP_REFUSED_FOR_NOW:
                raise outcome
            logger.warning(
                "Indexes stay that could not be built on all shards",
                namespace=str(self.namespace),
                shard=shard,
                index=name,
                error=str(outcome),
            )

    def _may_conflict(self, indexes: Sequence[Index]) -> bool:
        """Whether a shard may refuse an index because of one that it has: of the same name or key, but not the same.

        Of options that are left out, or written in another way, only mongod knows whether they make a difference.
        """
        return any(
            (new.get("name") == old["name"] or new.get("key") == old["key"]) and _without_version(new) != old
            for new in self._requested
            for old in map(_without_version, indexes)
        )

    @property
    def _requested(self) -> list[Index]:
        indexes: list[Index] = decode_document(bytes(self.arguments[REQUEST]))["indexes"]
        return indexes

    @property
    def _requested_names(self) -> set[str]:
        names = (index.get("name") for index in self._requested)
        return {name for name in names if is_string(name)}


def index_lock(namespace: Namespace, name: str) -> str:
    """The name of the lock for the creation of one index."""
    return f"index {name} of {namespace}"


def _names(indexes: Sequence[Index]) -> set[str]:
    return {index["name"] for index in indexes}


def _without_version(index: Index) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name != "v"}
