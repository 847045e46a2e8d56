"""A router without a network: shards that answer from a script, and a log of the requests to them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import bson
from bson.timestamp import Timestamp

from shardwright.router.context.statistics import TargetCounts
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.write_execution import execute
from shardwright.router.placement.routing_info import CollectionRouting, DatabaseRouting
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.internal_transaction import WriteSessions
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, reply
from shardwright.wire.request import Request
from tests.router.writes.builders import NAMESPACE, request

ALL_SHARDS = ("east", "north", "south", "west")
"""``south`` owns no chunk."""

TOPOLOGY_TIME = Timestamp(7, 7)
"""The topology time from which these are all the shards."""

OK = {"n": 1, "ok": 1.0}

Answer = Mapping[str, Any] | CommandError
"""A shard's reply, or the error in its place."""


class FakeRouter:
    """The part of a router's context that `router.operations.write_execution` uses.

    Args:
        tables: the routing table for each read of the routing, None for an unsharded collection, an error for a read
            that fails. The last one is used for all later reads.
        answer: the reply of a shard to a request.

    Attributes:
        sent: every request, with the shard it went to.
        log: all other calls.
        statement_counts: numbers of executed statements, by kind.
        write_sessions: as in the router's context.
        shard_ids: the shards of the cluster, `ALL_SHARDS` unless a test changes them; an error if they cannot be read.
    """

    def __init__(
        self, tables: Sequence[RoutingTable | CommandError | None], answer: Callable[[str, Request], Answer]
    ) -> None:
        self.routing = self.shards = self.sender = self
        self.collections: dict[str, CollectionRouting] = {}
        self.time_series: set[str] = set()
        self.target_counts = TargetCounts()
        self.sent: list[tuple[str, Request]] = []
        self.may_repeat: list[bool] = []
        self.log: list[str] = []
        self.shard_ids: tuple[str, ...] | CommandError = ALL_SHARDS
        self.topology_time = pack_timestamp(TOPOLOGY_TIME)
        self.clock = VectorClock()
        self.statement_counts = dict.fromkeys(WriteKind, 0)
        self.write_sessions = WriteSessions()
        self._tables = list(tables)
        self._answer = answer

    async def run(self, kind: WriteKind, statements: Sequence[Mapping[str, Any]], **arguments: object) -> Reply:
        """Execute a write command."""
        return await self.run_request(kind, request(kind, statements, **arguments))

    async def run_request(self, kind: WriteKind, received: Request) -> Reply:
        """Execute a write command given as a request."""
        return await execute(Operation(cast("Any", self), cast("Any", None), received), kind)

    # As the routing cache

    def note_time_series(self, namespace: str, stale: CommandError) -> bool:
        """No collection is a time-series collection."""
        return False

    async def collection(self, namespace: str, *, create_database: bool = False) -> CollectionRouting:
        assert (namespace, create_database) == (NAMESPACE, True)
        self.log.append("read routing")
        table = self._tables.pop(0) if len(self._tables) > 1 else self._tables[0]
        if isinstance(table, CommandError):
            raise table
        version = DatabaseVersion(bson.Binary(bytes(16), 4).as_uuid(), Timestamp(5, 5), 1)
        routing = CollectionRouting(namespace, DatabaseRouting("shop", "east", version), table)
        self.collections[namespace] = routing
        return routing

    async def latest_if_readable(self, routing: CollectionRouting) -> CollectionRouting:
        if self._tables[0] is routing.table:
            self.log.append("read latest routing")
            return routing
        return await self.collection(routing.namespace, create_database=True)

    def forget_collection(self, namespace: str) -> None:
        self.log.append("forget")
        del self.collections[namespace]

    def invalidate(self, routing: CollectionRouting) -> None:
        self.log.append("invalidate")
        assert self.collections.pop(routing.namespace) is routing

    def invalidate_database(self, routing: DatabaseRouting) -> None:
        self.log.append(f"invalidate database {routing.name}")

    # As the shard registry

    async def ids_as_told(self) -> tuple[str, ...]:
        if isinstance(self.shard_ids, CommandError):
            raise self.shard_ids
        return self.shard_ids

    # As the sender

    send_into = ShardSender.send_into

    async def send(self, shard: str, frame: bytes, *, may_repeat: bool = False, **_: object) -> ShardReply:
        received = Request(OpMsg(frame))
        self.sent.append((shard, received))
        self.may_repeat.append(may_repeat)
        answer = self._answer(shard, received)
        if isinstance(answer, CommandError):
            raise answer
        return ShardReply(shard, f"{shard}:1", reply(received.message.request_id, bson.encode(answer)))


def statements_sent(router: FakeRouter, field: bytes) -> list[tuple[str, list[dict[str, Any]]]]:
    """The statements of each request, with the shard it went to."""
    return [
        (shard, [bson.decode(statement) for statement in received.documents(field)]) for shard, received in router.sent
    ]
