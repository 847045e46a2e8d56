"""Executing a ``findAndModify`` that may change a shard key, under MongoDB's rules."""

from typing import Any

from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.shardd.shard_key_updates.overtaken_updates import is_find_and_modify_overtaken
from shardwright.shardd.shard_key_updates.preview import Preview
from shardwright.shardd.shard_key_updates.previewed_updates import previewed_find_and_modify
from shardwright.shardd.shard_key_updates.update_statement import raw_update
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.rawbson import EMPTY_DOCUMENT, raw_document, without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body

_MODIFYING = (b"sort", b"upsert", b"collation", b"arrayFilters", b"hint", b"let", b"bypassDocumentValidation")


async def key_changing_find_and_modify(changing: KeyChangingRequest) -> bytes:
    """Execute it as previewed; returns the frame of the reply.

    Raises:
        CommandError: it is not allowed, or fails.
    """
    changing.refuse_in_transaction()
    request = changing.request
    body, request_id = without(request.body, VERSION_FIELDS), request.message.request_id
    if await changing.has_begun():
        # Its transaction number covers nothing else, so mongod has executed it, and will not do so again.
        return await changing.exchange(body, request_id)
    query = request.raw_object(b"query") or EMPTY_DOCUMENT
    collated = changing.is_collated(request.body, request.fields)

    async def make(preview: Preview) -> bytes:
        made = previewed_find_and_modify(body, query, preview, is_collated=collated)
        return await changing.exchange(made, request_id)

    def is_overtaken(preview: Preview, frame: bytes, *, is_last: bool) -> bool:
        return is_find_and_modify_overtaken(preview, response_body(frame), is_last=is_last)

    return await changing.execute_as_previewed(query, _modification(request, query), make, is_overtaken)


def _modification(request: Request, query: bytes) -> dict[str, Any]:
    """The arguments of the request that determine its effect."""
    modification = {"query": raw_document(query), "update": raw_update(request.body, request.fields[b"update"])}
    return modification | {name.decode(): request.get(name) for name in _MODIFYING if name in request.fields}
