"""The definition of a view, as reported by a shard that cannot run a read of the view alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.router.reads.reads_of_buckets import stages_of_buckets, with_hint_for_buckets
from shardwright.router.reads.view_aggregate import as_aggregate, with_body
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    append,
    array_documents,
    array_of_documents,
    decode_document,
    decode_value,
    element,
    from_elements,
    index,
    string_value,
    without,
)
from shardwright.wire.request import Request

_REPLACED = frozenset({b"aggregate", b"pipeline"})
_NOT_ON_VIEWS = b"$collStats"
_QUERY_OF: Final = {"find": b"filter", "distinct": b"query"}


@dataclass(frozen=True, slots=True)
class ResolvedView:
    """The collection beneath a view, and the aggregation that defines the view.

    Attributes:
        namespace: the collection.
        stages: raw.
        collation: raw; the view's own, which reads cannot override. Empty for a time-series collection, which may be
            read with any.
        time_series: how measurements are made into buckets, if the collection holds buckets.
    """

    namespace: Namespace
    stages: tuple[bytes, ...]
    collation: bytes
    time_series: TimeSeriesFields | None = None

    @classmethod
    def of(cls, reply: bytes) -> "ResolvedView":
        """Read the body of a CommandOnShardedViewNotSupportedOnMongod.

        Raises:
            RemoteProtocolError: it does not describe a view.
        """
        resolved = index(reply).get(b"resolvedView")
        fields = index(reply, resolved[2]) if resolved is not None and resolved[0] == OBJECT else {}
        name, pipeline, collation = (fields.get(each) for each in (b"ns", b"pipeline", b"collation"))
        if name is None or name[0] != STRING or pipeline is None or pipeline[0] != ARRAY:
            raise RemoteProtocolError("an error about a view without the view's definition")
        stages = tuple(array_documents(reply, pipeline))
        raw_collation = b"" if collation is None or collation[0] != OBJECT else reply[collation[2] : collation[3]]
        options = fields.get(b"timeseriesOptions")
        time_series = None if options is None else TimeSeriesFields.from_document(decode_value(reply, options))
        return cls(Namespace.parse(str(decode_value(reply, name))), stages, raw_collation, time_series)

    def expand(self, request: Request) -> Request:
        """The aggregation on the collection that is equivalent to a read of the view.

        Raises:
            CommandError: an argument of the read is wrong, or has no counterpart in an aggregation.
        """
        aggregate = as_aggregate(request)
        _check_text(request)
        stages = aggregate.documents(b"pipeline")
        if stages and next(iter(index(stages[0])), b"") == _NOT_ON_VIEWS:
            raise not_on_view(Namespace(request.db, request.collection))
        kept = without(aggregate.body, _REPLACED | {b"collation"} if self.collation else _REPLACED)
        stages = [*self.stages, *stages]
        if self.time_series is not None:
            stages, kept = stages_of_buckets(stages), with_hint_for_buckets(kept, self.time_series)
        body = from_elements(
            element(b"aggregate", STRING, string_value(self.namespace.collection))
            + element(b"pipeline", ARRAY, array_of_documents(stages))
            + kept[4:-1]
        )
        return with_body(
            request, append(body, element(b"collation", OBJECT, self.collation)) if self.collation else body
        )


def _check_text(request: Request) -> None:
    """Refuse text searches of reads that a mongod parses before it looks for a view of that name.

    Raises:
        CommandError: IndexNotFound: a view has no text index.
    """
    name = _QUERY_OF.get(request.name)
    query = None if name is None else request.raw_object(name)
    if query is not None and b"$text\0" in query and _searches_text(decode_document(query)):
        raise CommandError(
            ErrorCode.IndexNotFound,
            f"text index required for $text query (no such collection '{request.db}.{request.collection}')",
        )


def _searches_text(query: Mapping[str, Any]) -> bool:
    return "$text" in query or any(
        isinstance(each, Mapping) and _searches_text(each)
        for name in ("$and", "$or", "$nor")
        for each in (query[name] if isinstance(query.get(name), list) else ())
    )


def not_on_view(namespace: Namespace) -> CommandError:
    """The error for operations that only collections support."""
    return CommandError(ErrorCode.CommandNotSupportedOnView, f"Namespace {namespace} is a view, not a collection")
