"""Places of the values in a frame that a router reads or may ignore, and the merge of short replies. Pure.

The places are common to all frames of a layout. `merged_whole_results` merges the replies of several shards to a find.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from shardwright.router.reads.find_arguments import FindArguments
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS, Order
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.passage_fields import (
    CommonFields,
    free_values,
    only_document,
    only_statement,
    query_of,
    without_document,
)
from shardwright.wire.cursor_batch import whole_result
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import (
    FRAME_BYTES_MAX,
    InsertedDocument,
    Range,
)
from shardwright.wire.rawbson import OBJECT, DocumentArray, InvalidBSONError, Span, decode_value, find, spans
from shardwright.wire.request import Request

_UPDATE: Final = b"update"


@dataclass(frozen=True, slots=True)
class PassageLayout:
    """The layout of one frame.

    Attributes:
        request: the request in the frame; a document in its body is cut out.
        common: the places of drivers' fields in ``request``.
        free: the ranges where frames of this layout may differ.
        query_at: the offset of the query; None for inserts.
        collation: the query's collation; None for the default.
    """

    request: Request
    common: CommonFields
    free: list[Range]
    query_at: int | None = None
    collation: dict[str, object] | None = None
    document: InsertedDocument | None = None

    @classmethod
    def of(cls, request: Request, kind: WriteKind | None) -> Self | None:
        """Find the layout of a request's frame; None if values are in unexpected places.

        A batch must have exactly one statement; ``kind`` is None for other commands.

        Raises:
            InvalidBSONError: a part of the frame is not well-formed.
        """
        frame, fields = request.message.frame, request.fields
        if kind is WriteKind.INSERT:
            return cls._of_insert(request)
        common = CommonFields.of(frame, fields)
        if common is None:
            return None
        free = list(common.free)
        if kind is None:
            query_at = query_of(frame, fields, request.name)
            collation = _collation(request.body, fields.get(b"collation"))
            span = fields.get(_UPDATE)
            update = None if span is None else (span[0], BODY_AT + span[2])
        else:
            statement = only_statement(frame, request.body, fields, kind.field)
            if statement is None:
                return None
            at, _ = statement
            query, span = find(frame, b"q", at), find(frame, b"u", at)
            query_at = None if query is None or query[0] != OBJECT else query[2]
            collation = _collation(frame, find(frame, b"collation", at))
            update = None if span is None else (span[0], span[2])
        if query_at is None or len(frame) > FRAME_BYTES_MAX:
            return None
        if update is not None and update[0] == OBJECT:
            free += free_values(frame, update[1], is_deep=True)
        free += free_values(frame, query_at, is_deep=True)
        return cls(request, common, free, query_at, collation)

    @classmethod
    def _of_insert(cls, request: Request) -> Self | None:
        frame = request.message.frame
        document = only_document(frame, request.body, request.fields, WriteKind.INSERT.field)
        if document is None or document.at + document.bytes_after > FRAME_BYTES_MAX:
            return None
        rest = without_document(request, document) if document.is_in_body else request
        common = CommonFields.of(rest.message.frame, rest.fields)
        return None if common is None else cls(rest, common, document.places_in(frame, common.free), document=document)


def _collation(document: bytes, span: Span | None) -> dict[str, object] | None:
    return None if span is None or span[0] != OBJECT else dict(decode_value(document, span))


def names_no_field_of(key_paths: Iterable[Sequence[bytes]], frame: bytes, query_at: int) -> bool:
    """Whether a query certainly targets all shards: it has no top-level operator and no field of the shard key."""
    first_parts = {path[0] for path in key_paths}
    return not any(name.startswith(b"$") or name.split(b".")[0] in first_parts for name, _ in spans(frame, query_at))


def merged_whole_results(
    arguments: FindArguments, order: Order | None, share: int | None, replies: Sequence[bytes], namespace: str
) -> list[bytes] | None:
    """Merge the replies of several shards to a find, as `ResultMerger` does, in one step.

    Return None unless each reply has its shard's whole result, and the merged result fits the client's first batch.
    """
    try:
        sources = [whole_result(reply, namespace) for reply in replies]
        documents = merge_sources(sources, order, arguments.skip, arguments.limit, share)
    except (InvalidBSONError, RemoteProtocolError):
        return None
    documents_max = FIRST_BATCH_DOCUMENTS if arguments.batch_size is None else arguments.batch_size
    return None if documents is None or len(documents) > documents_max else documents


def merge_sources(
    sources: Iterable[DocumentArray | None], order: Order | None, skip: int, limit: int, share: int | None
) -> list[bytes] | None:
    """Merge the documents of sources, and apply skip and limit; None if a source is missing or has too few.

    Args:
        limit: the maximum number of documents in total, without the skipped ones; 0 for no bound.
        share: the number of documents requested from each source. A source with that many may have more.

    Raises:
        InvalidBSONError: a source is malformed.
        RemoteProtocolError: a document lacks its sort key.
    """
    documents: list[bytes] = []
    keys: list[bytes] = []
    certain_end: tuple[bytes, int] | None = None
    for source in sources:
        if source is None:
            return None
        following = source.take(sys.maxsize)
        if order is None or not following:
            documents += following
            continue
        its_keys, its_documents = order.keyed(following)
        keys += its_keys
        documents += its_documents
        if share is not None and len(its_keys) >= share:
            # Documents that compare equal come in the order of their sources.
            end = its_keys[-1], len(keys) - 1
            certain_end = end if certain_end is None else min(certain_end, end)
    last = skip + limit if limit else len(documents)
    if order is None:
        return documents[skip:last]
    ranked = sorted(range(len(keys)), key=keys.__getitem__)[:last]
    if certain_end is not None and (len(ranked) < last or (keys[ranked[-1]], ranked[-1]) > certain_end):
        return None
    return [documents[position] for position in (ranked[skip:] if skip else ranked)]
