"""The definition of a view, as reported by a shard that cannot run a read of the view alone."""

from dataclasses import dataclass

from shardwright.router.reads.view_aggregate import as_aggregate, with_body
from shardwright.sharding.namespace import Namespace
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
    encode_document,
    from_elements,
    index,
    string_value,
    without,
)
from shardwright.wire.request import Request

_REPLACED = frozenset({b"aggregate", b"pipeline"})
_NOT_ON_VIEWS = b"$collStats"
_INDEX_STATS = b"$indexStats"
_UNPACK_BUCKET = "$_internalUnpackBucket"
_CONVERT_INDEX_STATS = "$_internalConvertBucketIndexStats"


@dataclass(frozen=True, slots=True)
class ResolvedView:
    """The collection beneath a view, and the aggregation that defines the view.

    Attributes:
        namespace: the collection.
        stages: raw.
        collation: raw; the view's own, which reads cannot override. Empty for a time-series collection, which may be
            read with any.
    """

    namespace: Namespace
    stages: tuple[bytes, ...]
    collation: bytes

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
        return cls(Namespace.parse(str(decode_value(reply, name))), stages, raw_collation)

    @property
    def _is_time_series(self) -> bool:
        return self.namespace.is_time_series_buckets and len(self.stages) == 1

    @property
    def _conversion(self) -> bytes:
        """The stage that shows indexes of buckets as those of the time-series collection."""
        unpacking = decode_document(self.stages[0])[_UNPACK_BUCKET]
        fields = {name: unpacking[name] for name in ("timeField", "metaField") if name in unpacking}
        return encode_document({_CONVERT_INDEX_STATS: fields})

    def expand(self, request: Request) -> Request:
        """The aggregation on the collection that is equivalent to a read of the view.

        Raises:
            CommandError: an argument of the read is wrong, or has no counterpart in an aggregation.
        """
        aggregate = as_aggregate(request)
        stages = aggregate.documents(b"pipeline")
        if stages and next(iter(index(stages[0])), b"") == _NOT_ON_VIEWS:
            raise not_on_view(Namespace(request.db, request.collection))
        above = self.stages
        if stages and self._is_time_series and next(iter(index(stages[0])), b"") == _INDEX_STATS:
            # The indexes are those of the buckets; their measurements are not read.
            above, stages = (), [stages[0], self._conversion, *stages[1:]]
        body = from_elements(
            element(b"aggregate", STRING, string_value(self.namespace.collection))
            + element(b"pipeline", ARRAY, array_of_documents([*above, *stages]))
            + without(aggregate.body, _REPLACED | {b"collation"} if self.collation else _REPLACED)[4:-1]
        )
        return with_body(
            request, append(body, element(b"collation", OBJECT, self.collation)) if self.collation else body
        )


def not_on_view(namespace: Namespace) -> CommandError:
    """The error for operations that only collections support."""
    return CommandError(ErrorCode.CommandNotSupportedOnView, f"Namespace {namespace} is a view, not a collection")
