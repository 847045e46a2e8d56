"""Positional projections (``{"list.$": 1}``) on collections with orphans.

mongod parses the query of such an operation a second time, and does not allow ``$expr`` there. So the matching
documents that are not orphans are looked up first, and their ids are added to the query in place of the filter.
"""

from typing import Final

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.filtered_queries import collation_of, filtered_query
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import OBJECT, append, element, encode_document, encode_elements, find, with_value
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply, response_body

_QUERY_AND_PROJECTION: Final = {
    "find": (b"filter", b"projection"),
    "findAndModify": (b"query", b"fields"),
    "findandmodify": (b"query", b"fields"),
}
_KEPT: Final = frozenset({b"collation", b"let", b"readConcern", b"maxTimeMS", b"$readPreference", b"hint"})
_ONLY_ID: Final = {"projection": {"_id": 1}}


def is_positional(request: Request) -> bool:
    """Whether an operation has a positional projection and a query."""
    names = _QUERY_AND_PROJECTION.get(request.name)
    if names is None:
        return False
    query, projection = (request.fields.get(name) for name in names)
    if query is None or query[0] != OBJECT or projection is None or projection[0] != OBJECT:
        return False
    return any(name.endswith(b".$") for name, _ in rawbson.spans(request.body, projection[2]))


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
    kept = b"".join([body[span[1] : span[3]] for each, span in request.fields.items() if each in _KEPT])
    search = append(
        encode_document({"find": namespace.collection, **_ONLY_ID, "$db": namespace.db}),
        element(b"filter", OBJECT, filtered) + kept,
    )
    among = encode_elements({"$and": [{"_id": rawbson.raw_document(await _ids(mongod, namespace, search))}]})
    return with_value(body, request.fields[name], append(query, among))


async def _ids(mongod: LocalMongod, namespace: Namespace, search: bytes) -> bytes:
    """``{$in: [<_id>, …]}`` with the ids that a ``find`` returns."""
    elements: list[bytes] = []
    while True:
        frame = await mongod.pool.exchange(op_msg(search, request_id=next_request_id()))
        reply = response_body(frame)
        cursor = find(reply, b"cursor")
        if cursor is None:
            raise CommandError.from_reply(decode_reply(frame))
        fields = rawbson.index(reply, cursor[2])
        for document in rawbson.array_documents(reply, fields.get(b"firstBatch") or fields[b"nextBatch"]):
            found = find(document, b"_id")
            assert found is not None
            elements.append(element(b"%d" % len(elements), found[0], document[found[2] : found[3]]))
        cursor_id = rawbson.decode_value(reply, fields[b"id"])
        if not cursor_id:
            return rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(elements)), b"$in")
        search = encode_document(
            {"getMore": bson.Int64(cursor_id), "collection": namespace.collection, "$db": namespace.db}
        )
