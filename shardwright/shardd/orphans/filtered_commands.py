"""The ownership filter in the queries of commands, which makes them ignore orphans.

Documents are not decoded; the command is copied with longer queries. Statements and commands whose query is pinned to
one owned shard key are left unchanged.

**Measurements.** In an update or delete of measurements mongod accepts conditions on the metadata only, which excludes
the filter. Equivalent statements on buckets accept it. A batch with a statement that mongod refuses has no equivalent.
"""

from collections.abc import Callable, Mapping
from typing import Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.filtered_queries import (
    collation_of,
    filtered_pipeline,
    is_pinned,
    is_positional,
    opens_change_stream,
    with_filtered_query,
    with_owned_ids,
    without_moves,
)
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.targeting.bucket_filters import meta_filter
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    array_documents,
    array_of_documents,
    decode_value,
    element,
    find,
    from_elements,
    spans,
    string_value,
    with_value,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_BUCKET_STATEMENTS: Final[Mapping[str, bytes]] = {"update": b"updates", "delete": b"deletes"}


def is_about_measurements(request: Request) -> bool:
    """Whether a write addresses the measurements of the buckets collection that it names."""
    span = request.fields.get(IS_TIME_SERIES_NAMESPACE)
    return span is not None and bool(decode_value(request.body, span))


def as_bucket_statements(request: Request, fields: TimeSeriesFields) -> Request | None:
    """Return an equivalent update or delete of buckets; None if there is none.

    Its reply counts buckets (see `operations.sharded_operations`).

    Raises:
        InvalidBSONError: a statement is malformed.
    """
    name = _BUCKET_STATEMENTS.get(request.name)
    if name is None:
        return None
    statements = [_statement(each, fields) for each in request.documents(name)]
    translated = [each for each in statements if each is not None]
    if len(translated) < len(statements):
        return None
    body = without(request.body, (IS_TIME_SERIES_NAMESPACE, name))
    body = from_elements(body[4:-1] + element(name, ARRAY, array_of_documents(translated)))
    message = request.message
    return Request(OpMsg(op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT)))


def _statement(statement: bytes, fields: TimeSeriesFields) -> bytes | None:
    query = find(statement, b"q")
    if query is None or query[0] != OBJECT:
        return None
    translated = meta_filter(statement, fields, query[2])
    if translated is None:
        return None
    statement = with_value(statement, query, translated)
    hint = find(statement, b"hint")
    if hint is not None and hint[0] == OBJECT:
        try:
            statement = with_value(statement, hint, fields.buckets_hint(statement[hint[2] : hint[3]]))
        except CommandError:
            return None
    update = find(statement, b"u")
    if update is None:
        return statement
    modification = _modification(statement, update[2], fields) if update[0] == OBJECT else None
    return None if modification is None else with_value(statement, update, modification)


def _modification(document: bytes, start: int, fields: TimeSeriesFields) -> bytes | None:
    operators = []
    for operator, operand in spans(document, start):
        if not operator.startswith(b"$") or operand[0] != OBJECT:
            return None
        assigned = []
        for path, (kind, _, value, end) in spans(document, operand[2]):
            renamed = fields.renamed(path.decode(errors="replace"))
            raw: bytes | None = document[value:end]
            if operator == b"$rename" and kind == STRING:
                target = fields.renamed(document[value + 4 : end - 1].decode(errors="replace"))
                raw = None if target is None else string_value(target)
            if renamed is None or raw is None:
                return None
            assigned.append(element(renamed.encode(), kind, raw))
        operators.append(element(operator, OBJECT, from_elements(b"".join(assigned))))
    return from_elements(b"".join(operators))


Filtering = Callable[[bytes, OwnershipFilter], bytes]

_STATEMENTS: Final = {"update": b"updates", "delete": b"deletes"}


@may_run_in_reactor
async def without_orphans(
    request: Request,
    mongod: LocalMongod,
    namespace: Namespace,
    ownership: OwnershipFilter,
    time_series: TimeSeriesFields | None = None,
) -> Request:
    """Return the request with a filter against orphans.

    Args:
        time_series: the time-series fields of a buckets collection.

    Raises:
        CommandError: as for `with_ownership` and `with_owned_ids`.
        BackendError: mongod does not answer.
    """
    if is_about_measurements(request):
        on_buckets = None if time_series is None else as_bucket_statements(request, time_series)
        return request if on_buckets is None else with_ownership(on_buckets, ownership)
    if is_positional(request) and not _reads_available(request.body):
        await in_own_task()
        return _with_body(request, await with_owned_ids(request, mongod, namespace, ownership), b"")
    return with_ownership(request, ownership)


def hiding_moves(request: Request) -> Request:
    """Exclude the writes of migrations from a request that opens a change stream."""
    pipeline = request.fields.get(b"pipeline")
    if pipeline is None or not opens_change_stream(request.body, pipeline):
        return request
    body = with_value(request.body, pipeline, without_moves(request.raw(pipeline)))
    return _with_body(request, body, b"")


def with_ownership(request: Request, ownership: OwnershipFilter) -> Request:
    """Return the request with the filter in all queries that need it.

    Raises:
        CommandError: ShardKeyNotFound, an upsert may match an orphan.
        InvalidBSONError: the request is malformed.
    """
    if request.name not in FILTERED or _reads_available(request.body):
        return request
    name = _STATEMENTS.get(request.name)
    sequences = b"".join(
        [
            encode_sequence(each.name, [_filtered_statement(statement, ownership) for statement in each.documents])
            if each.name == name
            else each.section()
            for each in request.message.sequences
        ]
    )
    return _with_body(request, FILTERED[request.name](request.body, ownership), sequences)


def _find(command: bytes, ownership: OwnershipFilter) -> bytes:
    return with_filtered_query(command, b"filter", ownership, collation_of(command, ownership))


def _query(command: bytes, ownership: OwnershipFilter) -> bytes:
    return with_filtered_query(command, b"query", ownership, collation_of(command, ownership), may_be_null=True)


def _find_and_modify(command: bytes, ownership: OwnershipFilter) -> bytes:
    if _is_true(command, b"upsert"):
        _require_pinned(command, b"query", ownership)
        return command
    return _query(command, ownership)


def _aggregate(command: bytes, ownership: OwnershipFilter) -> bytes:
    span = find(command, b"pipeline")
    if span is None or span[0] != ARRAY:
        return command
    pipeline = filtered_pipeline(command[span[2] : span[3]], ownership, collation_of(command, ownership))
    return with_value(command, span, pipeline)


def _updates(command: bytes, ownership: OwnershipFilter) -> bytes:
    return _with_filtered_statements(command, b"updates", ownership)


def _deletes(command: bytes, ownership: OwnershipFilter) -> bytes:
    return _with_filtered_statements(command, b"deletes", ownership)


def _explain(command: bytes, ownership: OwnershipFilter) -> bytes:
    explained = find(command, b"explain")
    if explained is None or explained[0] != OBJECT:
        return command
    inner = command[explained[2] : explained[3]]
    name, _ = next(iter(spans(inner)), (b"", None))
    filtering = FILTERED.get(name.decode(errors="replace"))
    return command if filtering is None else with_value(command, explained, filtering(inner, ownership))


FILTERED: Final[Mapping[str, Filtering]] = {
    "find": _find,
    "count": _query,
    "distinct": _query,
    "findAndModify": _find_and_modify,
    "findandmodify": _find_and_modify,
    "aggregate": _aggregate,
    "update": _updates,
    "delete": _deletes,
    "explain": _explain,
}
"""Filter functions by command name. All other commands concern the whole collection, or name their documents."""


def _with_filtered_statements(command: bytes, name: bytes, ownership: OwnershipFilter) -> bytes:
    span = find(command, name)
    if span is None or span[0] != ARRAY:
        return command
    statements = [_filtered_statement(statement, ownership) for statement in array_documents(command, span)]
    return with_value(command, span, array_of_documents(statements))


def _filtered_statement(statement: bytes, ownership: OwnershipFilter) -> bytes:
    query = find(statement, b"q")
    if query is None:
        return statement  # malformed: mongod reports it
    if _is_true(statement, b"upsert"):
        _require_pinned(statement, b"q", ownership)
        return statement
    return with_filtered_query(statement, b"q", ownership, collation_of(statement, ownership))


def _require_pinned(statement: bytes, name: bytes, ownership: OwnershipFilter) -> None:
    """Check that an upsert is pinned to a key that this shard owns.

    mongod does not allow the filter in upserts. They need none, because routers send them to the owner of their shard
    key.
    """
    span = find(statement, name)
    query = EMPTY_DOCUMENT if span is None or span[0] != OBJECT else statement[span[2] : span[3]]
    if not is_pinned(query, ownership, collation_of(statement, ownership)):
        raise CommandError(
            ErrorCode.ShardKeyNotFound,
            "Failed to target upsert by query :: could not extract exact shard key that this shard owns",
        )


def _is_true(document: bytes, name: bytes) -> bool:
    span = find(document, name)
    return span is not None and bool(decode_value(document, span))


def _reads_available(command: bytes) -> bool:
    """Whether the read concern is ``available``, which includes orphans."""
    concern = find(command, b"readConcern")
    if concern is None or concern[0] != OBJECT:
        return False
    level = find(command, b"level", concern[2])
    return level is not None and level[0] == STRING and decode_value(command, level) == "available"


def _with_body(request: Request, body: bytes, sequences: bytes) -> Request:
    message = request.message
    flags = message.flags & ~CHECKSUM_PRESENT
    return Request(OpMsg(op_msg(body, request_id=message.request_id, flags=flags, sections=sequences)))
