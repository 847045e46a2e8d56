"""A document that is joined alone, since what it is joined with does not fit into one command.

Of the results, only a batch is held here. If a ``$unwind`` follows, each of them is handed to a mongod by itself, as
many as there may be; a mongod reads one from this router if it does not fit into a command together with the document.
Otherwise a mongod reads them all from this router and gathers them in an array.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import bson

from shardwright.router.joins.computed_stream import ComputedStream
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.mapped_stream import mapped_stream
from shardwright.router.joins.memory import MEMORY_BYTES_MAX
from shardwright.router.joins.row_stream import RowStream
from shardwright.router.joins.stage_building import raw_stage, stage
from shardwright.router.joins.streams import DocumentStream
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, element, encode_elements, from_elements, is_string

TOO_LARGE: Final = 4568
"""MongoDB's number for a document that a ``$lookup`` would make too large."""

_UNWRAPPING: Final = stage("$replaceWith", "$d")
_OPTIONS: Final = frozenset({"path", "includeArrayIndex", "preserveNullAndEmptyArrays"})


@dataclass(frozen=True, slots=True)
class _Unwind:
    index_field: str | None
    keeps_empty: bool

    @classmethod
    def of(cls, tail: Sequence[bytes], into: str) -> "_Unwind | None":
        """The ``$unwind`` of the joined documents that comes first; None if another stage does."""
        first = Stage.parse(tail[0]) if tail else None
        if first is None or first.name != "$unwind":
            return None
        given = first.specification
        options = {"path": given} if is_string(given) else given
        if not isinstance(options, dict) or options.get("path") != f"${into}" or not _OPTIONS.issuperset(options):
            return None
        index_field, keeps_empty = options.get("includeArrayIndex"), options.get("preserveNullAndEmptyArrays", False)
        if not (index_field is None or is_string(index_field)) or not isinstance(keeps_empty, bool):
            return None  # which a mongod reports
        return cls(index_field, keeps_empty)


def joined_alone(
    environment: JoinEnvironment, document: bytes, results: DocumentStream, into: str, tail: Sequence[bytes]
) -> DocumentStream:
    """A document joined with the documents of a stream.

    Args:
        environment: of the aggregation.
        document: the document.
        results: what it is joined with.
        into: path of the field for them.
        tail: raw stages on single documents that follow.
    """
    putting = [_constant(document), stage("$set", {f"d.{into}": "$r"})]
    unwind = _Unwind.of(tail, into)
    if unwind is None:
        rows = RowStream(results, _row, if_none=EMPTY_DOCUMENT, bytes_max=MEMORY_BYTES_MAX, excess=_too_large(into))
        gathering = stage("$group", {"_id": None, "r": {"$push": "$r"}})
        return ComputedStream(environment, rows, [gathering, *putting, _UNWRAPPING, *tail])
    if unwind.index_field is not None:
        putting.append(stage("$set", {f"d.{unwind.index_field}": "$n"}))
    rows = RowStream(results, _numbered_row, if_none=_NO_RESULT if unwind.keeps_empty else None)
    return mapped_stream(environment, rows, [*putting, _UNWRAPPING, *tail[1:]])


def _row(result: bytes, _: int) -> bytes:
    return from_elements(element(b"r", OBJECT, result))


def _numbered_row(result: bytes, number: int) -> bytes:
    return from_elements(element(b"r", OBJECT, result) + encode_elements({"n": bson.Int64(number)}))


_NO_RESULT: Final = from_elements(encode_elements({"n": None}))


def _constant(document: bytes) -> bytes:
    """The stage that adds the document to a row."""
    literal = from_elements(element(b"$literal", OBJECT, document))
    return raw_stage(b"$set", from_elements(element(b"d", OBJECT, literal)))


def _too_large(into: str) -> CommandError:
    return CommandError(
        TOO_LARGE, f"Total size of the documents that are joined as {into} exceeds {MEMORY_BYTES_MAX} bytes"
    )
