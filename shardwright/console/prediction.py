"""The shards that an operation will contact, by the rules that routers apply. Without I/O.

The rules are the router's own (`sharding.targeting`, `sharding.pipelines`); only the source of the placement differs. A
prediction has the filter and the rule by which each part of an operation is routed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from shardwright.sharding.pipelines.pipeline import DESCRIBE_SHARDS, Pipeline, leading_filter, stages_of_buckets
from shardwright.sharding.pipelines.pushdown import moved_forward
from shardwright.sharding.targeting.statements import DeleteStatement, UpdateStatement
from shardwright.sharding.targeting.targets import CollectionPlacement, target_filter
from shardwright.sharding.targeting.values import effective, is_simple
from shardwright.sharding.targeting.writes import (
    Broadcast,
    Destination,
    target_delete,
    target_find_and_modify,
    target_inserts,
    target_measurements,
    target_update,
    with_ids,
)
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    NULL,
    InvalidBSONError,
    decode_document,
    encode_document,
    raw_document,
)
from shardwright.wire.request import Request

_Statement = TypeVar("_Statement", UpdateStatement, DeleteStatement)


class Rule(Enum):
    """The rule by which a part of an operation is routed."""

    FILTER = "the filter's conditions on the shard key"
    DOCUMENT = "the shard key of the document"
    EXACT_KEY = "the shard key, given by equality"
    ALL_SHARDS = "several shards can match, so all shards of the cluster receive the write"
    DESCRIBES = "each shard of the collection describes itself"
    PRIMARY = "the collection is not sharded: it is on the primary shard of its database"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an operation that is routed by itself: a read, or one statement of a write.

    Attributes:
        shards: the shards that receive it; none if it is refused.
        filter: the raw filter by which it is routed; None if there is none.
        refusal: the error of a router that refuses it.
    """

    rule: Rule
    shards: frozenset[str] = frozenset()
    filter: bytes | None = None
    refusal: CommandError | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A view, or a time-series collection, which is a view of its buckets.

    Attributes:
        on: the collection that it reads, without the database.
    """

    on: str
    pipeline: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Where:
    """The placement of a namespace.

    Attributes:
        placement: of the collection, or of the buckets of a time-series collection; None if it is not sharded.
        view: the definition of a view or of a time-series collection; None for other collections.
    """

    primary: str
    cluster: frozenset[str]
    placement: CollectionPlacement | None = None
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The parts of an operation, in their order; an ordered write ends with the first refused part."""

    parts: tuple[Part, ...]

    @property
    def shards(self) -> tuple[str, ...]:
        """All shards that the operation contacts, in order."""
        return tuple(sorted({shard for part in self.parts for shard in part.shards}))

    @property
    def refusal(self) -> CommandError | None:
        """The first error of a router that refuses a part."""
        return next((part.refusal for part in self.parts if part.refusal is not None), None)

    @property
    def filter(self) -> bytes | None:
        """The raw filter of the part with the most shards; None if it has none."""
        return max(self.parts, key=lambda part: len(part.shards)).filter if self.parts else None


class NotPredictable(ValueError):
    """The command is not routed by a shard key."""


def request_of(command: Mapping[str, Any], db: str) -> Request:
    """Build the request that a router would receive for a command.

    Raises:
        NotPredictable: it is not a command.
    """
    try:
        body = encode_document({**{name: value for name, value in command.items() if name != "$db"}, "$db": db})
        return Request(OpMsg(op_msg(body, request_id=0)))
    except (CommandError, ValueError, TypeError) as error:
        raise NotPredictable(str(error)) from error


def predict(request: Request, where: Where) -> Prediction:
    """Predict the shards that a command will contact.

    Shards of other collections that stages of a pipeline name are not included.

    Raises:
        NotPredictable: the command is not routed by a shard key.
    """
    route = _ROUTES.get(request.name)
    if route is None:
        raise NotPredictable(f"{request.name} is not routed by a shard key")
    if where.placement is None:
        return Prediction((Part(Rule.PRIMARY, frozenset({where.primary})),))
    try:
        if where.view is not None and request.name in _READS:
            request, route = _on_view(request, where.view), _aggregate
        return Prediction(tuple(_until_refused(request, route(request, where.placement, where.cluster))))
    except CommandError as error:
        return Prediction((Part(Rule.FILTER, refusal=error),))
    except InvalidBSONError as error:
        raise NotPredictable(str(error)) from error


_Route: TypeAlias = Callable[[Request, CollectionPlacement, frozenset[str]], Iterator[Part]]


def _until_refused(request: Request, parts: Iterator[Part]) -> Iterator[Part]:
    is_ordered = b"ordered" not in request.fields or bool(request.get(b"ordered"))
    for part in parts:
        yield part
        if part.refusal is not None and is_ordered:
            return


_READS: Final = {"find": b"filter", "count": b"query", "distinct": b"query", "aggregate": b""}


def _given(request: Request, name: bytes) -> bytes | None:
    """Return a raw document among the arguments; None if it is missing or null, which servers treat alike.

    Raises:
        CommandError: TypeMismatch, it is something else.
    """
    span = request.fields.get(name)
    return None if span is None or span[0] == NULL else request.raw_object(name)


def _collation(request: Request) -> Mapping[str, Any] | None:
    found = _given(request, b"collation")
    return None if found is None else decode_document(found)


def _by_filter(filter_document: bytes, collation: Mapping[str, Any] | None, placement: CollectionPlacement) -> Part:
    simple = is_simple(effective(collation, placement.collection.default_collation))
    return Part(
        Rule.FILTER,
        frozenset(target_filter(filter_document, placement, simple_collation=simple)),
        filter_document,
    )


def _read(request: Request, placement: CollectionPlacement, _: frozenset[str]) -> Iterator[Part]:
    name = b"filter" if request.name == "find" else b"query"
    yield _by_filter(_given(request, name) or EMPTY_DOCUMENT, _collation(request), placement)


def _aggregate(request: Request, placement: CollectionPlacement, _: frozenset[str]) -> Iterator[Part]:
    pipeline = moved_forward(Pipeline.parse(request))
    if pipeline.first in DESCRIBE_SHARDS:
        yield Part(Rule.DESCRIBES, frozenset(placement.shards))
        return
    filter_document = leading_filter(pipeline, placement.collection.time_series)
    yield _by_filter(filter_document, _collation(request), placement)


def _find_and_modify(request: Request, placement: CollectionPlacement, _: frozenset[str]) -> Iterator[Part]:
    query = _given(request, b"query") or EMPTY_DOCUMENT
    shard = target_find_and_modify(query, _collation(request), placement)
    yield Part(Rule.EXACT_KEY, frozenset({shard}), query)


def _insert(request: Request, placement: CollectionPlacement, cluster: frozenset[str]) -> Iterator[Part]:
    documents = request.documents(b"documents")
    fields = placement.collection.time_series
    if fields is not None:
        yield from (_part(target_measurements(each, fields, placement), cluster, None) for each in documents)
        return
    complete = with_ids(documents, placement.key_pattern) or documents
    yield from (_part(to, cluster, None) for to in target_inserts(complete, placement).by_statement)


def _update(request: Request, placement: CollectionPlacement, cluster: frozenset[str]) -> Iterator[Part]:
    return _by_statement(map(UpdateStatement, request.documents(b"updates")), target_update, placement, cluster)


def _delete(request: Request, placement: CollectionPlacement, cluster: frozenset[str]) -> Iterator[Part]:
    return _by_statement(map(DeleteStatement, request.documents(b"deletes")), target_delete, placement, cluster)


def _by_statement(
    statements: Iterable[_Statement],
    target: Callable[[_Statement, CollectionPlacement], Destination],
    placement: CollectionPlacement,
    cluster: frozenset[str],
) -> Iterator[Part]:
    fields = placement.collection.time_series
    for statement in statements:
        to = target(statement, placement) if fields is None else target_measurements(statement, fields, placement)
        yield _part(to, cluster, statement.filter)


def _part(to: Destination, cluster: frozenset[str], filter_document: bytes | None) -> Part:
    rule = Rule.DOCUMENT if filter_document is None else Rule.FILTER
    if isinstance(to, CommandError):
        return Part(rule, filter=filter_document, refusal=to)
    if isinstance(to, Broadcast):
        return Part(Rule.ALL_SHARDS, cluster, filter_document)
    return Part(rule, frozenset({to}), filter_document)


_ROUTES: Final[Mapping[str, _Route]] = {
    "find": _read,
    "count": _read,
    "distinct": _read,
    "mapReduce": _read,
    "mapreduce": _read,
    "aggregate": _aggregate,
    "findAndModify": _find_and_modify,
    "findandmodify": _find_and_modify,
    "insert": _insert,
    "update": _update,
    "delete": _delete,
}


def _on_view(request: Request, view: View) -> Request:
    """Translate a read of a view into an aggregation of the view's collection."""
    if request.name == "aggregate":
        own = [stage.raw for stage in Pipeline.parse(request).stages]
    else:
        query = _given(request, _READS[request.name]) or EMPTY_DOCUMENT
        own = [encode_document({"$match": raw_document(query)})]
    stages = [*view.pipeline, *own]
    if view.pipeline:
        stages = stages_of_buckets(stages)
    command = {"aggregate": view.on, "pipeline": [raw_document(each) for each in stages], "cursor": {}}
    collation = _given(request, b"collation")
    if collation is not None:
        command["collation"] = raw_document(collation)
    return request_of(command, request.db)
