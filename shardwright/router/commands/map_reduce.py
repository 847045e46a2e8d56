"""``mapReduce``: rewritten as an aggregation in the same form as by mongos and mongod, with its own reply format.

::

    [$match: query] [$sort] [$limit]
    $project: the array of all pairs that the map function emits for a document
    $unwind
    $group: by the emitted key, with the reduce function
    [$project: finalize]
    [$out | $merge: the output collection]

The functions run in the mongods, which have two internal expressions for them. All error texts are mongod's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.code import Code
from bson.timestamp import Timestamp

from shardwright.router.exec.stage import MissingStage, Stage
from shardwright.router.operations.aggregation import run_aggregate
from shardwright.router.operations.listed_collection import listed_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.views import with_body
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.sharding.cluster_time import unpack_timestamp
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    append,
    array_of_documents,
    element,
    encode_document,
    encode_elements,
    is_string,
    raw_document,
    without,
)
from shardwright.wire.request import Request

LIMIT_NOT_POSITIVE: Final = 15958
_SORT_IS_EMPTY: Final = 15976

_STRUCT: Final = "mapReduce"
_REPLACED: Final = frozenset(
    {b"mapReduce", b"mapreduce", b"map", b"reduce", b"out", b"query", b"sort", b"limit", b"finalize", b"scope"}
    | {b"jsMode", b"verbose"}
)
_KNOWN: Final = _REPLACED | {b"collation", b"bypassDocumentValidation"}

_ACTIONS: Final = (b"replace", b"merge", b"reduce")

_KEY_OTHER_THAN_ID: Final = 31313
_INLINE_RESULTS_TOO_LARGE: Final = 31301


@dataclass(frozen=True, slots=True)
class Output:
    """The destination of the results.

    Attributes:
        action: ``inline``, ``replace``, ``merge`` or ``reduce``.
        namespace: the output collection; None for ``inline``.
        names_database: whether the command names the database of the output collection.
        must_be_sharded: whether the output collection must be sharded.
    """

    action: str
    namespace: Namespace | None = None
    names_database: bool = False
    must_be_sharded: bool = False

    @classmethod
    def parse(cls, arguments: Arguments, db: str) -> "Output":
        """Parse the argument ``out``.

        Raises:
            CommandError: 40414, BadValue, InvalidOptions, InvalidNamespace, CommandNotSupported.
        """
        value = _required(arguments, b"out")
        if is_string(value):
            return cls("replace", _output_namespace(db, value))
        if not isinstance(value, Mapping):
            raise _bad_value("'out' must be either a string or an object")
        if "inline" in value:
            return cls._inline(value)
        for name in ("nonAtomic", "sharded"):
            if name in value and value[name] is not True:
                raise _bad_value(f"{name} field value must be true")
        action = next((each.decode() for each in _ACTIONS if each.decode() in value), None)
        if action is None:
            raise _bad_value("'out' requires 'replace', 'merge' or 'reduce'")
        if not is_string(value[action]):
            raise _bad_value(f"'{action}' supports only string consisting of output collection name")
        if not is_string(value.get("db", db)):
            raise _bad_value("db field value must be string")
        if "db" in value and Namespace(value["db"]).is_internal:
            raise CommandError(ErrorCode.CommandNotSupported, "cannot target internal database as output")
        namespace = _output_namespace(value.get("db", db), value[action])
        return cls(action, namespace, "db" in value, "sharded" in value)

    @classmethod
    def _inline(cls, value: Mapping[str, Any]) -> "Output":
        if isinstance(value["inline"], bool) or value["inline"] != 1:
            raise _bad_value("'inline' takes only numeric '1'")
        if len(value) > 1:
            raise CommandError(ErrorCode.InvalidOptions, "'inline' must be specified alone")
        return cls("inline")

    @property
    def result(self) -> str | dict[str, str]:
        """The field ``result`` of the reply."""
        assert self.namespace is not None
        if not self.names_database:
            return self.namespace.collection
        return {"db": self.namespace.db, "collection": self.namespace.collection}


@dataclass(frozen=True, slots=True)
class MapReduce:
    """The arguments of a ``mapReduce``; functions are JavaScript source text.

    Attributes:
        map: emits keys and values of a document.
        reduce: combines the values of a key.
        finalize: computes the final value of a key, None if there is no such function.
        limit: the number of documents to read, None for all.
        scope: global variables of the functions.
    """

    map: str
    reduce: str
    finalize: str | None
    output: Output
    query: bytes | None
    sort: bytes | None
    limit: int | None
    scope: dict[str, Any]

    @classmethod
    def parse(cls, request: Request) -> "MapReduce":
        """Check the arguments as mongod does.

        Raises:
            CommandError: 40414, 40415, TypeMismatch, BadValue, 15958, 15976; or from `Output.parse`.
        """
        given = Arguments.of(request, _STRUCT)
        given.refuse_unknown(_KNOWN)
        for name in (b"verbose", b"jsMode", b"bypassDocumentValidation"):
            given.boolean(name, strictness=Strictness.BOOL)
        given.maybe_raw(b"collation")
        limit = given.maybe_integer(b"limit", minimum=None)
        if limit is not None and limit <= 0:
            raise CommandError(LIMIT_NOT_POSITIVE, "The limit specified to mapReduce must be positive")
        sort = given.maybe_raw(b"sort")
        if sort == EMPTY_DOCUMENT:
            raise CommandError(_SORT_IS_EMPTY, "The mapReduce sort option must have at least one sort key")
        return cls(
            map=_function(given, b"map"),
            reduce=_function(given, b"reduce"),
            finalize=None if given.value(b"finalize") is None else _function(given, b"finalize"),
            output=Output.parse(given, request.db),
            query=given.maybe_raw(b"query"),
            sort=sort,
            limit=limit,
            scope=_scope(given),
        )

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The pipeline."""
        stages: list[dict[str, Any]] = []
        if self.query is not None:
            stages.append({"$match": raw_document(self.query)})
        if self.sort is not None:
            stages.append({"$sort": raw_document(self.sort)})
        if self.limit is not None:
            stages.append({"$limit": bson.Int64(self.limit)})
        emitted = {"$_internalJsEmit": {"eval": self.map, "this": "$$ROOT"}}
        reduced = {"$_internalJsReduce": {"data": "$emits", "eval": self.reduce}}
        stages += [
            {"$project": {"emits": emitted, "_id": False}},
            {"$unwind": {"path": "$emits"}},
            {"$group": {"_id": "$emits.k", "value": reduced}},
        ]
        if self.finalize is not None:
            stages.append({"$project": {"_id": True, "value": _called(self.finalize, "$value")}})
        return [*stages, *self._output_stages()]

    def as_aggregate(self, request: Request, cluster_time: Timestamp) -> Request:
        """Return the aggregation, with the command's generic arguments.

        Args:
            cluster_time: the current one, for the functions' environment.
        """
        constants = {
            "localNow": datetime.now(UTC),
            "clusterTime": cluster_time,
            "jsScope": self.scope,
            "isMapReduce": True,
        }
        fields = {
            "aggregate": request.collection,
            "pipeline": self.stages,
            "cursor": {"batchSize": bson.Int64((1 << 31) - 1)},
            "allowDiskUse": True,
            "runtimeConstants": constants,
        }
        return with_body(request, append(encode_document(fields), without(request.body, _REPLACED)[4:-1]))

    def _output_stages(self) -> list[dict[str, Any]]:
        if self.output.namespace is None:
            return []
        into = {"db": self.output.namespace.db, "coll": self.output.namespace.collection}
        if self.output.action == "replace":
            return [{"$out": into}]
        merge: dict[str, Any] = {"into": into, "on": "_id", "whenMatched": "replace", "whenNotMatched": "insert"}
        if self.output.action == "reduce":
            again = [_called(self.reduce, ["$value", "$$new.value"])]
            if self.finalize is not None:
                again.append(_called(self.finalize, "$value"))
            merge |= {"let": {"new": "$$ROOT"}, "whenMatched": [{"$project": {"value": each}} for each in again]}
        return [{"$merge": merge}]


def internal_error(error: CommandError) -> CommandError:
    """Convert an error of the aggregation to ``mapReduce``'s form."""
    return CommandError(error.code, f"MapReduce internal error :: caused by :: {error.message}", extra=error.extra)


def _called(function: str, values: object) -> dict[str, Any]:
    """Return an expression that calls a function with a key and its value or values."""
    return {"$function": {"args": ["$_id", values], "body": function, "lang": "js"}}


def _required(arguments: Arguments, name: bytes) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """Read a required argument; MongoDB reads it with a separate parser, which takes null for a wrong type."""
    return arguments.value(name) if arguments.is_null(name) else arguments.required_value(name)


def _function(arguments: Arguments, name: bytes) -> str:
    value = _required(arguments, name)
    if not is_string(value) and not (isinstance(value, Code) and value.scope is None):
        raise _bad_value(f"'{name.decode()}' must be of string or code type")
    return str(value)


def _scope(arguments: Arguments) -> dict[str, Any]:
    value = arguments.value(b"scope")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad_value("'scope' must be an object")
    return value


def _output_namespace(db: str, collection: str) -> Namespace:
    if not db or not collection:
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid output namespace {db}.{collection} for MapReduce")
    return Namespace(db, collection)


def _bad_value(message: str) -> CommandError:
    return CommandError(ErrorCode.BadValue, message)


async def map_reduce(operation: Operation) -> Reply:
    """Runs JavaScript functions over a collection's documents and combines their results by key."""
    request = operation.request
    arguments = MapReduce.parse(request)
    output = arguments.output
    if output.namespace is None and b"writeConcern" in request.fields:
        raise CommandError(ErrorCode.InvalidOptions, "Command does not support writeConcern")
    await refuse_view(operation)
    if output.namespace is not None:
        await _check_target(operation, output)
    aggregate = arguments.as_aggregate(request, unpack_timestamp(operation.context.clock.time.cluster_time))
    running = operation.part(aggregate)
    try:
        read = await run_aggregate(running, operation.namespace)
        documents = await read.first_batch()
    except ShardedViewError:
        raise _on_view() from None
    except CommandError as error:
        raise internal_error(error) from error
    finally:
        operation.targeted, operation.retries = running.targeted, running.retries
    if output.namespace is not None:
        return operation.raw_reply(encode_elements({"result": output.result}), read.root.reply_elements)
    return _inline(operation, read.root, documents)


async def refuse_view(operation: Operation) -> None:
    """Refuse a view or a time-series collection, because an aggregation would read it.

    Raises:
        CommandError: CommandNotSupportedOnView; or the primary shard could not be read.
    """
    routing = await operation.context.routing.find(operation.namespace)
    if routing is None or routing.is_sharded:
        return
    listed = await listed_collection(operation, routing)
    if listed is not None and listed["type"] in ("view", "timeseries"):
        raise _on_view()


def _inline(operation: Operation, root: Stage, documents: list[bytes]) -> Reply:
    """Return all results in one reply."""
    if isinstance(root, MissingStage):
        return {"results": []}
    if not root.is_exhausted:
        message = "MapReduce inline results are greater than the allowed 16MB limit"
        raise CommandError(_INLINE_RESULTS_TOO_LARGE, message)
    return operation.raw_reply(element(b"results", ARRAY, array_of_documents(documents)))


async def _check_target(operation: Operation, output: Output) -> None:
    """Refuse an output collection with an unsuitable shard key, or an unsharded one if it must be sharded.

    A missing database is created on the primary shard of the source.
    """
    cache = operation.context.routing
    routing = await cache.find(str(output.namespace))
    source = await cache.find(operation.namespace)
    if routing is None and source is not None and not output.must_be_sharded:
        routing = await cache.collection(str(output.namespace), create_database=True, primary=source.primary)
    if routing is not None:
        routing = await cache.latest_if_readable(routing)  # another router may have sharded it by another key
    is_sharded = routing is not None and routing.is_sharded
    if output.must_be_sharded and not is_sharded:
        raise internal_error(
            CommandError(
                ErrorCode.InvalidOptions,
                "Cannot use mapReduce to create a new sharded collection. Please create and shard the target "
                "collection before proceeding.",
            )
        )
    if routing is not None and not _is_by_id(routing):
        raise CommandError(
            _KEY_OTHER_THAN_ID,
            "The mapReduce target collection must either be unsharded or sharded by {_id: 1} or {_id: 'hashed'}",
        )


def _is_by_id(routing: CollectionRouting) -> bool:
    """Whether the ``_id`` alone determines a document's shard, as it also does in an unsharded collection."""
    table = routing.table
    return table is None or [field.name for field in table.collection.key_pattern.fields] == [b"_id"]


def _on_view() -> CommandError:
    return CommandError(ErrorCode.CommandNotSupportedOnView, "mapReduce on a view is not supported")
