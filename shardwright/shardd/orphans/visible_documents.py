"""Leaving documents out of the batches of a cursor that is older than the range in which they are.

What the documents show decides how: the shard key in their raw bytes, or their ``_id``, by which the key is looked up.
"""

from collections.abc import Iterator
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.cursor_kinds import Shown
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.transport.cursor import RawCursor

_IDS_MAX: Final = 10_000
_ID_BYTES_MAX: Final = 8 << 20
"""How many are looked up at once."""


async def visible_documents(
    mongod: LocalMongod, namespace: str, hidden: OwnershipFilter, shown: Shown, documents: list[bytes]
) -> list[bytes]:
    """The documents of a batch that are outside of the hidden ranges.

    One that is looked up and not found has been deleted. It may have been hidden before that, so it is left out.

    Args:
        mongod: where the collection is.
        namespace: the collection.
        hidden: the ranges.
        shown: what the documents show: the shard key or the ``_id``.
        documents: the batch.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    if shown is Shown.KEY:
        return [document for document in documents if not hidden.covers(document)]
    ids = [_id_in(each) for each in documents]
    wanted = sorted({each for each in ids if each is not None})
    found: set[bytes] = set()
    for some in _in_groups(wanted):
        found |= await _visible_ids(mongod, Namespace.parse(namespace), hidden, some)
    return [document for document, each in zip(documents, ids, strict=True) if each in found]


async def _visible_ids(
    mongod: LocalMongod, namespace: Namespace, hidden: OwnershipFilter, ids: list[bytes]
) -> set[bytes]:
    """Look up which ids, each as type and value, belong to documents outside of the hidden ranges.

    The ranges are compared here, as mongod would have to parse all of them for each batch. mongod compares ids as the
    collection does, so that it can use the index; here, the bytes have to be the same.
    """
    elements = [rawbson.element(b"%d" % at, each[0], each[1:]) for at, each in enumerate(ids)]
    among = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(elements)), b"$in")
    names = [each.name.decode() for each in hidden.pattern.fields]
    search: dict[str, Any] = {
        "find": namespace.collection,
        "filter": rawbson.raw_document(rawbson.wrap_value(rawbson.OBJECT, among, b"_id")),
        "projection": {"_id": 1} | {name: 1 for name in names if name.partition(".")[0] != "_id"},
        "batchSize": len(ids) + 1,
        "$readPreference": {"mode": "nearest"},
    }
    cursor = RawCursor(mongod.pool.exchange, namespace.db, search)
    visible = (each for each in await cursor.all_documents() if not hidden.covers(each))
    return {found for document in visible if (found := _id_in(document)) is not None}


def _in_groups(ids: list[bytes]) -> Iterator[list[bytes]]:
    """The ids in groups that fit into one command each."""
    group: list[bytes] = []
    size = 0
    for each in ids:
        if group and (len(group) == _IDS_MAX or size + len(each) > _ID_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(each)
        size += len(each)
    if group:
        yield group


def _id_in(document: bytes) -> bytes | None:
    """The type and value of a document's ``_id``."""
    span = rawbson.find(document, b"_id")
    return None if span is None else bytes((span[0],)) + document[span[2] : span[3]]
