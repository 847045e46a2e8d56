"""Reads of missing databases. MongoDB returns an empty result rather than an error, with a few exceptions."""

from collections.abc import Awaitable
from typing import Final, TypeVar

from shardwright.router.operations.checked_pipeline import check_pipeline
from shardwright.router.operations.involved_collections import check_out_targets
from shardwright.router.operations.listed_collection import COLLECTION_UUID
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.stages import is_known
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.reads.explain import VERBOSITIES, wrapped
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.arguments import GENERIC_ARGUMENTS, Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import STRING, append, element, encode_elements, from_elements, string_value, without
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import raw_elements
from shardwright.wire.transport.reactor import in_own_task

T = TypeVar("T")

_UNKNOWN_STAGE: Final = 40324
_COLL_STATS: Final = "$collStats"
_DOCUMENTS: Final = "$documents"
_CHANGE_STREAM: Final = "$changeStream"
_WITH_PIPELINES: Final = frozenset({"$lookup", "$unionWith"})
_FIND_MISSING: Final = element(b"find", STRING, string_value("tmp.explained"))
_ANY_MEMBER: Final = ReadPreference("primaryPreferred")


async def unless_missing(operation: Operation, reading: Awaitable[T], nothing: T) -> T:
    """Return the result of a read, or ``nothing`` if the database of its collection does not exist.

    Raises:
        CommandError: another error of the read; InvalidNamespace, which no shard could report; or from
            `check_aggregation`.
    """
    try:
        return await reading
    except CommandError as error:
        check_is_missing(operation, error)
        if operation.request.name == "aggregate":
            await in_own_task()
            await check_aggregation(operation, Pipeline.parse(operation.request), error)
    return nothing


def check_is_missing(operation: Operation, error: CommandError) -> None:
    """Check that a read failed because the database of its collection does not exist.

    Raises:
        CommandError: the error; InvalidNamespace; CollectionUUIDMismatch, the read is of a collection with a UUID.
    """
    request = operation.request
    if error.code != ErrorCode.NamespaceNotFound or request.db in operation.context.routing.databases:
        raise error
    if next(iter(request.fields.values()))[0] != STRING:
        return
    Namespace(request.db, request.collection).check_readable()
    if COLLECTION_UUID in request.fields:
        raise CommandError(
            ErrorCode.CollectionUUIDMismatch,
            "Database does not exist",
            extra={
                "db": request.db,
                "collectionUUID": Arguments.of(request).value(COLLECTION_UUID),
                "expectedCollection": request.collection,
                "actualCollection": None,
            },
        )


async def check_aggregation(operation: Operation, pipeline: Pipeline, error: CommandError) -> None:
    """Refuse an aggregation on a missing database for which mongos does not return an empty result.

    Checks the option ``cursor`` and the stage names, and the whole pipeline if it needs no database.

    Args:
        error: the NamespaceNotFound error, for stages that need the database.

    Raises:
        CommandError: 40324, a stage is unknown; NamespaceNotFound; or from `batch_size`, `check_out_targets` and
            `check_pipeline`.
    """
    batch_size(operation.request)
    for name in pipeline.names:
        if not is_known(name):
            raise CommandError(_UNKNOWN_STAGE, f"Unrecognized pipeline stage name: '{name}'")
    await check_out_targets(operation, pipeline)
    if pipeline.first == _COLL_STATS:
        message = f"Unable to retrieve information for $collStats stage :: caused by :: {error.message}"
        raise CommandError(error.code, message)
    if needs_no_database(pipeline):
        if reads_others(pipeline, operation.request.db):
            raise error
        await check_pipeline(operation)


def needs_no_database(pipeline: Pipeline) -> bool:
    """Whether mongos runs a pipeline although its database is missing."""
    return pipeline.first == _DOCUMENTS or _CHANGE_STREAM in pipeline.names


def reads_others(pipeline: Pipeline, db: str) -> bool:
    """Whether a stage of a pipeline is about a collection of its own, for which mongos looks up the database."""
    return bool(pipeline.involved_namespaces(db)) or not _WITH_PIPELINES.isdisjoint(pipeline.names)


async def check_query(operation: Operation) -> None:
    """Refuse an invalid ``find``, because mongos parses it before it looks up the database.

    A mongod explains it on a collection that does not exist, which parses the command without planning it.

    Raises:
        CommandError: the error in the ``find``.
    """
    shards = await operation.context.shards.all_ids()
    if not shards:
        return
    any_shard = operation.context.shards.reachable_of(shards)
    request = operation.request
    left_out = {name for name in request.fields if name in GENERIC_ARGUMENTS or name.startswith(b"$")} | {b"find"}
    inner = from_elements(_FIND_MISSING + without(request.body, left_out)[4:-1])
    explain = wrapped(inner, VERBOSITIES[0], raw_elements(request, (b"$db",)))
    explain = append(explain, encode_elements({"$readPreference": {"mode": _ANY_MEMBER.mode}}))
    frame = op_msg(explain, request_id=next_request_id())
    reply = await operation.context.sender.send(any_shard, frame, preference=_ANY_MEMBER, may_repeat=True)
    reply.raise_for_error()
