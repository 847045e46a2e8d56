"""Positional projections (``{"list.$": 1}``) on collections with orphans.

mongod parses the query of such an operation a second time, and does not allow ``$expr`` there. So the matching
documents that are not orphans are looked up first, and their ids are added to the query in place of the filter.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.filtered_queries import collation_of, filtered_query
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, append, element, encode_elements, find, with_value
from shardwright.wire.request import Request
from shardwright.wire.transport.cursor import RawCursor

_QUERY_AND_PROJECTION: Final = {
    "find": (b"filter", b"projection"),
    "findAndModify": (b"query", b"fields"),
    "findandmodify": (b"query", b"fields"),
}
_KEPT: Final = frozenset({b"collation", b"let", b"readConcern", b"maxTimeMS", b"$readPreference", b"hint"})
_ENDS_NAME: Final = b".$\0"
_ONLY_ID: Final = {"projection": {"_id": 1}}


def is_positional(request: Request) -> bool:
    """Whether an operation has a positional projection and a query."""
    names = _QUERY_AND_PROJECTION.get(request.name)
    if names is None:
        return False
    query, projection = request.fields.get(names[0]), request.fields.get(names[1])
    if query is None or query[0] != OBJECT or projection is None or projection[0] != OBJECT:
        return False
    return request.body.find(_ENDS_NAME, projection[2], projection[3]) >= 0 and any(
        name.endswith(b".$") for name, _ in rawbson.spans(request.body, projection[2])
    )


async def with_owned_ids(
    request: Request, mongod: LocalMongod, namespace: Namespace, ownership: OwnershipFilter
) -> bytes:
    """The body of an operation with a positional projection, whose query is restricted to documents that are owned.

    Raises:
        CommandError: the query is invalid; OperationNotSupportedInTransaction.
        BackendError: mongod does not answer.
    """
    body = request.body
    name = _QUERY_AND_PROJECTION[request.name][0]
    query = request.raw_object(name)
    assert query is not None
    filtered = filtered_query(query, ownership, collation_of(body, ownership))
    if filtered == query:
        return body
    if b"autocommit" in request.fields:
        raise CommandError(
            ErrorCode.OperationNotSupportedInTransaction,
            "a positional projection in a transaction must have the shard key in its query while a range is deleted",
        )
    kept = {each.decode(): _verbatim(request, each) for each in request.fields if each in _KEPT}
    search = {"find": namespace.collection, **_ONLY_ID, "filter": rawbson.raw_document(filtered), **kept}
    among = encode_elements({"$and": [{"_id": rawbson.raw_document(await _ids(mongod, namespace, search))}]})
    return with_value(body, request.fields[name], append(query, among))


async def _ids(mongod: LocalMongod, namespace: Namespace, search: Mapping[str, Any]) -> bytes:
    """``{$in: [<_id>, …]}`` with the ids that a ``find`` returns, which may take as long as the client's operation."""
    elements: list[bytes] = []
    cursor = RawCursor(mongod.pool.exchange, namespace.db, search, reply_seconds_max=inf)
    for document in await cursor.all_documents():
        found = find(document, b"_id")
        assert found is not None
        elements.append(element(b"%d" % len(elements), found[0], document[found[2] : found[3]]))
    return rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(elements)), b"$in")


def _verbatim(request: Request, name: bytes) -> object:
    """The value of a field; a document as it is."""
    span = request.fields[name]
    return rawbson.raw_document(request.raw(span)) if span[0] == OBJECT else request.get(name)
