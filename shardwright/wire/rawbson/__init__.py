"""BSON documents read in place, one level at a time, without decoding parts that are only forwarded.

A document is a ``bytes`` object, which is never copied for reading. A *span* is the position of one element: ``(type,
element_start, value_start, value_end)``. These are offsets into the bytes object, with the element's type byte at
``element_start`` and its value in ``[value_start, value_end)``. Spans are plain tuples because a router creates about
ten of them for every operation.

All functions raise InvalidBSONError for documents that are not well-formed, as far as they read them.

`types` defines the types, `spans` locates elements, `building` builds documents from bytes, `arrays` splits and builds
arrays of documents, `values` decodes, `repeated` decodes documents with repeated fields.

Imports no other room.
"""

from shardwright.wire.rawbson.arrays import DocumentArray, array_documents, array_elements, array_of_documents
from shardwright.wire.rawbson.building import (
    append,
    element,
    encode_document,
    encode_elements,
    from_elements,
    raw_document,
    string_value,
    with_value,
    without,
    without_spans,
    wrap_value,
)
from shardwright.wire.rawbson.repeated import WholeDocument, decode_whole
from shardwright.wire.rawbson.spans import (
    deciding_bytes,
    depth_exceeds,
    document_length,
    find,
    index,
    spans,
    spans_at_any_depth,
)
from shardwright.wire.rawbson.types import (
    ARRAY,
    BINARY,
    BOOL,
    CODE,
    CODE_WITH_SCOPE,
    DATE,
    DB_POINTER,
    DECIMAL128,
    DOCUMENT_BYTES_MIN,
    DOUBLE,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    MAX_KEY,
    MIN_KEY,
    NULL,
    OBJECT,
    OBJECT_ID,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UNDEFINED,
    InvalidBSONError,
    Span,
)
from shardwright.wire.rawbson.values import (
    VALUE_CODEC,
    VerbatimDocument,
    decode_document,
    decode_exactly,
    decode_value,
    is_string,
)

__all__ = [
    "ARRAY",
    "BINARY",
    "BOOL",
    "CODE",
    "CODE_WITH_SCOPE",
    "DATE",
    "DB_POINTER",
    "DECIMAL128",
    "DOCUMENT_BYTES_MIN",
    "DOUBLE",
    "EMPTY_DOCUMENT",
    "INT32",
    "INT64",
    "MAX_KEY",
    "MIN_KEY",
    "NULL",
    "OBJECT",
    "OBJECT_ID",
    "REGEX",
    "STRING",
    "SYMBOL",
    "TIMESTAMP",
    "UNDEFINED",
    "VALUE_CODEC",
    "DocumentArray",
    "InvalidBSONError",
    "Span",
    "VerbatimDocument",
    "WholeDocument",
    "append",
    "array_documents",
    "array_elements",
    "array_of_documents",
    "deciding_bytes",
    "decode_document",
    "decode_exactly",
    "decode_value",
    "decode_whole",
    "depth_exceeds",
    "document_length",
    "element",
    "encode_document",
    "encode_elements",
    "find",
    "from_elements",
    "index",
    "is_string",
    "raw_document",
    "spans",
    "spans_at_any_depth",
    "string_value",
    "with_value",
    "without",
    "without_spans",
    "wrap_value",
]
