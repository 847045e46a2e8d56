"""``explain``: the command inside it, the ``explain`` for each shard, and the reply in mongos's form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardwright.router.reads.aggregations import as_explained, check_collectionless
from shardwright.router.reads.find_arguments import filter_of
from shardwright.router.reads.views import ResolvedView
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    Span,
    append,
    element,
    from_elements,
    index,
    string_value,
    type_name,
    without,
)
from shardwright.wire.request import Request

VERBOSITIES: Final = ("queryPlanner", "executionStats", "allPlansExecution")

_KNOWN: Final = frozenset({b"explain", b"verbosity"})
_FILTER_FIELDS: Final = dict.fromkeys((b"count", b"distinct", b"findAndModify", b"mapReduce"), b"query")
_STATEMENT_FIELDS: Final = {b"update": b"updates", b"delete": b"deletes"}
_ALIASES: Final = {b"findandmodify": b"findAndModify", b"mapreduce": b"mapReduce"}
_EXPLAINABLE: Final = frozenset({b"find", b"aggregate", *_FILTER_FIELDS, *_STATEMENT_FIELDS})


@dataclass(frozen=True, slots=True)
class ExplainedCommand:
    """The command to explain.

    Attributes:
        request: the command as if the client had sent it directly.
        body: the command in the client's ``explain``.
        filter: the raw filter that determines its target.
        collation: the raw collation of the filter, None if it has none.
        shown: the command for the reply, if it differs from ``request``.
    """

    request: Request
    body: bytes
    name: str
    verbosity: str
    filter: bytes
    collation: bytes | None
    shown: dict[str, Any] | None = None

    @classmethod
    def parse(cls, explain: Request, is_known: Callable[[str], bool]) -> "ExplainedCommand":
        """Parse an ``explain`` command.

        Raises:
            CommandError: TypeMismatch; BadValue for the verbosity; CommandNotFound; IllegalOperation for commands that
                cannot be explained; or the inner command's error.
        """
        arguments = Arguments.of(explain)
        body = arguments.raw(b"explain")
        arguments.refuse_unknown(_KNOWN)
        given = arguments.maybe_string(b"verbosity")
        verbosity = VERBOSITIES[-1] if given is None else given
        if verbosity not in VERBOSITIES:
            raise CommandError(
                ErrorCode.BadValue,
                f"Enumeration value '{verbosity}' for field 'explain.verbosity' is not a valid value.",
            )
        name = next(iter(index(body)), b"")
        name = _ALIASES.get(name, name)
        text = name.decode(errors="replace")
        if name == b"explain":
            raise CommandError(ErrorCode.IllegalOperation, "Explain cannot explain itself.")
        if name not in _EXPLAINABLE:
            if is_known(text):
                raise CommandError(ErrorCode.IllegalOperation, f"Cannot explain cmd: {text}")
            raise CommandError(ErrorCode.CommandNotFound, f"Explain failed due to unknown command: {text}")
        request = _as_request(body, explain)
        _check_collection(request, text)
        return cls.of(request, body, text, verbosity)

    @classmethod
    def of(cls, request: Request, body: bytes, name: str, verbosity: str) -> "ExplainedCommand":
        """Parse a command that can be explained."""
        if name == "find":
            found, collation = filter_of(request), request.raw_object(b"collation")
        elif name == "aggregate":
            found, collation = Pipeline.parse(request).filter, Arguments.of(request).maybe_raw(b"collation")
        elif name.encode() in _FILTER_FIELDS:
            arguments = Arguments.of(request, name)
            found = arguments.maybe_raw(_FILTER_FIELDS[name.encode()]) or EMPTY_DOCUMENT
            collation = arguments.maybe_raw(b"collation")
        else:
            found, collation = _first_statement(request, _STATEMENT_FIELDS[name.encode()])
        return cls(request, body, name, verbosity, found, collation)

    @classmethod
    def of_aggregate(cls, aggregate: Request) -> "ExplainedCommand":
        """Parse an ``aggregate`` with ``explain: true``."""
        body = as_explained(aggregate)
        return cls.of(_as_request(body, aggregate), body, "aggregate", VERBOSITIES[0])

    def on_view(self, view: ResolvedView) -> "ExplainedCommand":
        """Return the aggregation equivalent to this read of a view.

        Raises:
            CommandError: there is none.
        """
        return self.as_aggregate(view.expand(self.request))

    def as_aggregate(self, request: Request) -> "ExplainedCommand":
        """Return the same explanation for an aggregation in place of this command."""
        return self.of(request, without(request.body, {b"$db"}), "aggregate", self.verbosity)

    @property
    def is_write(self) -> bool:
        """Whether the command would change documents."""
        return self.name in ("update", "delete", "findAndModify")

    def stage(self, shard_count: int) -> str:
        """Return the name of the router's stage."""
        if self.name in ("update", "delete"):
            return "SHARD_WRITE"
        # This includes findAndModify, which always has a single shard.
        if shard_count == 1:
            return "SINGLE_SHARD"
        return "SHARD_MERGE_SORT" if b"sort" in self.request.fields else "SHARD_MERGE"


def wrapped(inner: bytes, verbosity: str, others: bytes) -> bytes:
    """Build the command that makes a shard explain ``inner``.

    Args:
        others: raw elements that follow, such as ``$db``.
    """
    return from_elements(
        element(b"explain", OBJECT, inner) + element(b"verbosity", STRING, string_value(verbosity)) + others
    )


def _as_request(body: bytes, explain: Request) -> Request:
    """Return the inner command on the database of the ``explain``; its own, if any, is left for shards to refuse."""
    db = explain.fields[b"$db"]
    return Request(OpMsg(op_msg(append(without(body, {b"$db"}), explain.body[db[1] : db[3]]), request_id=0)))


def _check_collection(request: Request, name: str) -> None:
    """Refuse an invalid name of a collection."""
    kind = next(iter(request.fields.values()))[0]
    if kind == STRING or name == "mapReduce":
        return
    if name == "find":  # a find itself has another error code
        raise CommandError(ErrorCode.InvalidNamespace, f"collection name has invalid type {type_name(kind)}")
    if name == "aggregate":
        return check_collectionless(request)
    request.collection  # noqa: B018 - which raises


def _first_statement(request: Request, name: bytes) -> tuple[bytes, bytes | None]:
    """Return the filter and the collation of the only statement of an update or a delete."""
    statements = request.documents(name)
    if len(statements) != 1:
        raise CommandError(ErrorCode.InvalidLength, "explained write batches must be of size 1")
    statement = statements[0]
    fields = index(statement)
    if b"q" not in fields or fields[b"q"][0] != OBJECT:
        raise missing_field(f"{request.name}.{name.decode(errors='replace')}.q")
    collation = fields.get(b"collation")
    return _raw(statement, fields[b"q"]), None if collation is None else _raw(statement, collation)


def _raw(document: bytes, span: Span) -> bytes:
    return document[span[2] : span[3]]


PLANNER_VERSION: Final = 1

_TOTALS: Final = ("nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined")


@dataclass(frozen=True, slots=True)
class ShardExplain:
    """The explanation of one shard.

    Attributes:
        connection_string: ``set/host:port,…``.
        address: the member that answered.
    """

    shard_id: str
    connection_string: str
    address: str
    reply: Mapping[str, Any]


def explain_reply(
    stage: str,
    verbosity: str,
    shards: Sequence[ShardExplain],
    milliseconds: int,
    server: Mapping[str, Any],
    command: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the reply for all commands but ``aggregate``.

    Args:
        server: ``serverInfo`` and ``serverParameters`` of the router.
    """
    reply: dict[str, Any] = {"queryPlanner": _query_planner(stage, shards)}
    if verbosity != "queryPlanner":
        reply["executionStats"] = _execution_stats(stage, verbosity, shards, milliseconds)
    return {**reply, **server, "command": command}


def explain_aggregate_reply(
    shards: Sequence[ShardExplain],
    merge_type: str | None,
    split: Mapping[str, Any] | None,
    server: Mapping[str, Any],
    command: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the reply for ``aggregate`` on a sharded collection.

    Args:
        merge_type: ``mergeType``, None if a single shard runs the pipeline.
        split: ``shardsPart`` and ``mergerPart``, None if a single shard runs the pipeline.
        server: as in `explain_reply`.
        command: as in `explain_reply`.
    """
    return {
        **server,
        **({} if merge_type is None else {"mergeType": merge_type}),
        "splitPipeline": None if split is None else dict(split),
        "shards": {
            each.shard_id: {
                "host": each.address,
                **_chosen(each.reply, ("stages", "queryPlanner", "executionStats")),
            }
            for each in shards
        },
        "command": command,
    }


def explain_router_reply(
    shard: ShardExplain, server: Mapping[str, Any], address: str, command: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the reply for an aggregation that mongos runs itself.

    Args:
        shard: the explanation of a shard, with the stages that mongos would run.
        server: as in `explain_reply`.
        command: as in `explain_reply`.
    """
    return {
        **server,
        "splitPipeline": None,
        "mongos": {"host": address, **_chosen(shard.reply, ("stages",))},
        "command": command,
    }


def passed_through(
    shard: ShardExplain, server: Mapping[str, Any], shown: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Build the reply for an aggregation of unsharded collections: the only shard's, with the router's own fields.

    Args:
        server: as in `explain_reply`.
        shown: the command, if it differs from the shard's.
    """
    said = {name: value for name, value in shard.reply.items() if name not in server}
    return {**server, **said, **({} if shown is None else {"command": shown})}


def explains_aggregation(reply: Mapping[str, Any]) -> bool:
    """Whether a mongod has explained a read of a view as an aggregation on the underlying collection."""
    return "aggregate" in reply.get("command", {})


def _query_planner(stage: str, shards: Sequence[ShardExplain]) -> dict[str, Any]:
    return {
        "mongosPlannerVersion": PLANNER_VERSION,
        "winningPlan": {
            "stage": stage,
            "shards": [
                {
                    "shardName": each.shard_id,
                    "connectionString": each.connection_string,
                    **_chosen(each.reply, ("serverInfo",)),
                    **each.reply["queryPlanner"],
                }
                for each in shards
            ],
        },
    }


def _execution_stats(stage: str, verbosity: str, shards: Sequence[ShardExplain], milliseconds: int) -> dict[str, Any]:
    of_shards = [each.reply["executionStats"] for each in shards]
    totals = {name: sum(stats.get(name, 0) for stats in of_shards) for name in _TOTALS}
    child_milliseconds = totals["executionTimeMillis"]
    totals["executionTimeMillis"] = milliseconds
    found: dict[str, Any] = {
        **totals,
        "executionStages": {
            "stage": stage,
            **totals,
            "totalChildMillis": child_milliseconds,
            "shards": [{"shardName": each.shard_id, **stats} for each, stats in zip(shards, of_shards, strict=True)],
        },
    }
    if verbosity == "allPlansExecution":
        found["allPlansExecution"] = [
            {"shardName": each.shard_id, "allPlans": stats.get("allPlansExecution", [])}
            for each, stats in zip(shards, of_shards, strict=True)
        ]
    return found


def _chosen(reply: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: reply[name] for name in names if name in reply}
