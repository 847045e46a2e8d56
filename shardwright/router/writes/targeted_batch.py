"""The destinations of a batch's statements, and each shard's part of one round with the message that carries it.

`sharding.targeting.writes` has the rules.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from shardwright.router.writes.batch import WriteBatch, WriteKind
from shardwright.sharding.clock import config_time_element, topology_time_element
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.statements import DeleteStatement, UpdateStatement
from shardwright.sharding.targeting.writes import (
    ALL_SHARDS,
    Destinations,
    target_delete,
    target_inserts,
    target_measurements,
    target_update,
    with_ids,
)
from shardwright.sharding.versions import IGNORED, shard_version_element
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import ARRAY, INT32, append, element, from_elements, without


def target_batch(batch: WriteBatch, table: RoutingTable | None, primary: str) -> Destinations:
    """Return the destination of each statement. Documents may be given their ``_id`` on the way.

    The table is None for an unsharded collection, which is on the ``primary`` shard.

    Raises:
        CommandError: a statement is malformed, and with it the command.
        InvalidBSONError: a statement is not well-formed BSON.
    """
    if table is None:
        return Destinations([primary] * len(batch.statements), has_errors=False, has_broadcasts=False)
    if batch.is_on_buckets:
        return _target_measurements(batch, table)
    if batch.kind is WriteKind.INSERT:
        completed = with_ids(batch.statements, table.key_pattern)
        if completed is not None:
            batch.replace_statements(completed)
        return target_inserts(batch.statements, table)
    if batch.kind is WriteKind.UPDATE:
        updates = [UpdateStatement(statement) for statement in batch.statements]
        found = Destinations.of([target_update(update, table) for update in updates])
        if not found.has_broadcasts:
            return found
        by_id = sum(
            to is ALL_SHARDS and not each.is_multi for each, to in zip(updates, found.by_statement, strict=True)
        )
        return found._replace(updates_by_id=by_id)
    deletes = [DeleteStatement(statement) for statement in batch.statements]
    return Destinations.of([target_delete(delete, table) for delete in deletes])


_PARSE: Final = {WriteKind.INSERT: bytes, WriteKind.UPDATE: UpdateStatement, WriteKind.DELETE: DeleteStatement}


def _target_measurements(batch: WriteBatch, table: RoutingTable) -> Destinations:
    fields = table.collection.time_series
    assert fields is not None
    parse = _PARSE[batch.kind]
    return Destinations.of([target_measurements(parse(each), fields, table) for each in batch.statements])


class ShardBatch:
    """The statements of one round for one shard.

    Attributes:
        is_broadcast: its statements also go to other shards; versions are not checked.
        positions: the positions of the statements in the client's batch.
    """

    __slots__ = ("is_broadcast", "positions", "shard")

    def __init__(self, shard: str, *, is_broadcast: bool, positions: Iterable[int] = ()) -> None:
        self.shard = shard
        self.is_broadcast = is_broadcast
        self.positions = list(positions)


_IGNORED_VERSION_ELEMENT: Final = shard_version_element(IGNORED)

_BODY_FIRST: Final = 0
_INT32_TYPE: Final = bytes((INT32,))
_pack_int32 = Struct("<i").pack


def message_with_versions(message: OpMsg, versions: bytes, body: bytes | None = None) -> bytes:
    """Add version elements to a client's message, optionally with another body; its sections are copied unchanged."""
    frame = message.frame
    if not message.sequences:
        sections = b""
    elif frame[20] == _BODY_FIRST and not message.flags & CHECKSUM_PRESENT:
        sections = frame[21 + len(message.body) :]
    else:
        sections = b"".join([sequence.section() for sequence in message.sequences])
    return op_msg(append(body or message.body, versions), request_id=message.request_id, sections=sections)


def broadcast_elements(topology_time: int, config_time: int) -> bytes:
    """Build the elements that broadcast statements carry instead of versions, since any shard may own matches.

    Args:
        topology_time: the packed topology time of the set of shards, 0 if unknown; a shard that has seen a later change
            reports it in its reply.
        config_time: the packed config time of the router's cache, 0 if unknown.
    """
    gossip = config_time_element(config_time) if config_time else b""
    return gossip + _IGNORED_VERSION_ELEMENT + topology_time_element(topology_time)


def shard_message(batch: WriteBatch, part: ShardBatch, versions: bytes) -> bytes:
    """Build a message with some of the statements.

    Statements of a retryable write carry their ids from the client's batch. A shard then recognizes them however the
    batch is divided, and also in the transaction that may have to execute them. Broadcast statements in a router's
    session carry them too.
    """
    body, elements = batch.divided_body, versions
    own_session = batch.own_session if part.is_broadcast else b""
    if own_session:
        body = without(body, {b"lsid"})
    if batch.is_numbered or own_session:
        ids = batch.statement_ids()
        elements = _statement_ids([ids[position] for position in part.positions]) + own_session + versions
    statements = batch.statements
    return op_msg(
        append(body, elements),
        request_id=batch.request.message.request_id,
        sections=encode_sequence(batch.kind.field, [statements[position] for position in part.positions]),
    )


def _statement_ids(ids: list[int]) -> bytes:
    entries = [b"%b%d\0%b" % (_INT32_TYPE, index, _pack_int32(each)) for index, each in enumerate(ids)]
    return element(b"stmtIds", ARRAY, from_elements(b"".join(entries)))
