"""Updates and deletes of measurements, as the equivalent statements on buckets.

mongod accepts nothing in such a query but conditions on the metadata, so the filter for orphans does not fit in. In a
query of buckets it does. A batch with a statement that mongod is going to refuse has no equivalent.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.sharding.targeting.bucket_filters import meta_filter
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, TimeSeriesFields
from shardwright.wire.errors import CommandError
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
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

_STATEMENTS: Final[Mapping[str, bytes]] = {"update": b"updates", "delete": b"deletes"}


def is_about_measurements(request: Request) -> bool:
    """Whether a write names the buckets of a collection and means its measurements."""
    span = request.fields.get(IS_TIME_SERIES_NAMESPACE)
    return span is not None and bool(decode_value(request.body, span))


def as_bucket_statements(request: Request, fields: TimeSeriesFields) -> Request | None:
    """An equivalent update or delete of buckets; None if there is none.

    Its reply counts buckets (see `operations.counted_measurements`).

    Raises:
        InvalidBSONError: a statement is not well-formed.
    """
    name = _STATEMENTS.get(request.name)
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
