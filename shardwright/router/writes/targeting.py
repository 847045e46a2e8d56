"""The destinations of a batch's statements; `sharding.targeting.writes` has the rules."""

from typing import Final

from shardwright.router.writes.batch import WriteBatch, WriteKind
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
