"""Shared parts of all stages of a joined aggregation: reading collections, and running stages on a mongod."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from random import choice
from typing import Final, TypeAlias

import bson
import trio

from shardwright.router.exec.shard import ShardStage
from shardwright.router.exec.stage import GetMore, Stage
from shardwright.router.lookup.pipeline_input import Room
from shardwright.router.operations.cursor_opening import AggregateRunner, open_on_shards
from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.commands import SESSION
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Stage as PipelineStage
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import check_size
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    append,
    array_of_documents,
    element,
    encode_elements,
    from_elements,
    index,
    string_value,
    without,
)
from shardwright.wire.request import Request, raw_elements
from shardwright.wire.request_validation import API_PARAMETERS

COLLECTIONLESS: Final = ""
"""Stands for the collection in ``{aggregate: 1}``."""

_NOT_FOR_OTHERS: Final = frozenset(
    {
        *(b"aggregate", b"pipeline", b"cursor", b"hint", b"explain", b"let", b"collation", b"$db"),
        *(b"txnNumber", b"writeConcern", b"bypassDocumentValidation"),
    }
)
"""Arguments of an aggregation that do not apply to reads of other collections."""

_FOR_COMPUTING: Final = (b"allowDiskUse", b"comment", b"maxTimeMS")

_FOR_WRITING: Final = (b"writeConcern", b"bypassDocumentValidation")

_BATCH_SIZE: Final = (1 << 31) - 1


class JoinEnvironment:
    """The environment of a joined aggregation. Its methods raise CommandError if an aggregation fails.

    Args:
        body: the command, with the read concern for all collections.

    Attributes:
        collation: the raw collation of all comparisons.
        is_collated: whether it is not the simple one.
        variables: the elements of ``let`` by name.
        reading: the request by which the router reads collections, in the session of the aggregation.
    """

    def __init__(
        self, operation: Operation, run_aggregate: AggregateRunner, body: bytes, collation: bytes, *, is_collated: bool
    ) -> None:
        self.operation = operation
        self.run_aggregate = run_aggregate
        self.collation = collation
        self.is_collated = is_collated
        fields = raw_elements(operation.request, (SESSION, *API_PARAMETERS, b"$db"))
        # No client: any connection of the session may read a cursor on the join.
        self.reading = GetMore(_request(from_elements(fields)), client=None)
        let = operation.request.raw_object(b"let") or EMPTY_DOCUMENT
        self.variables = {name: let[span[1] : span[3]] for name, span in index(let).items()}
        self._others = without(body, _NOT_FOR_OTHERS)[4:-1]
        self._computing = _elements(body, _FOR_COMPUTING)
        self._writing = _elements(body, _FOR_WRITING)

    @property
    def db(self) -> str:
        """The database."""
        return self.operation.request.db

    def command_bytes(self, stages: Sequence[bytes]) -> int:
        """Return the size of stages in a command, together with the variables."""
        return sum(map(len, stages)) + sum(map(len, self.variables.values()))

    async def read(
        self, collection: str, stages: Sequence[bytes], variables: dict[bytes, bytes] | None = None
    ) -> Stage:
        """Aggregate another collection, regardless of its location.

        Args:
            collection: its name, or `COLLECTIONLESS`.
            variables: elements to add to the ``let`` of the aggregation, by name.
        """
        let = b"".join({**self.variables, **(variables or {})}.values())
        body = self._command(collection, stages, let, encode_elements({"cursor": {}}) + self._others)
        if collection == COLLECTIONLESS:
            namespace = str(Namespace.collectionless_aggregate(self.db))
        else:
            namespace = f"{self.db}.{collection}"
        return await open_part(self.operation, self.run_aggregate, body, namespace)

    async def compute(
        self, stages: Sequence[bytes], variables: dict[bytes, bytes] | None = None, elements: bytes = b""
    ) -> Stage:
        """Run stages that read no collection on the mongod of any shard.

        Args:
            stages: raw; the first is a source.
            variables: elements to add to the ``let`` of the aggregation, by name.

        Raises:
            CommandError: BSONObjectTooLarge, the stages contain too much.
        """
        let = b"".join({**self.variables, **(variables or {})}.values())
        cursor = encode_elements({"cursor": {"batchSize": bson.Int64(_BATCH_SIZE)}})
        body = self._command(COLLECTIONLESS, stages, let, cursor + self._computing + elements)
        check_size(len(body))
        operation = Operation(self.operation.context, self.operation.client, _request(body))
        shard = choice(await self.operation.context.shards.all_ids())
        frame = operation.request.message.frame
        (reply,) = await open_on_shards(operation, {shard: frame})
        return ShardStage(operation.sender, reply, passed_on=())

    def with_variables(self, variables: dict[bytes, bytes]) -> "JoinEnvironment":
        """Return the environment of a nested pipeline.

        Args:
            variables: elements of ``let`` by name, added to the present ones.
        """
        nested = copy(self)
        nested.variables = {**self.variables, **variables}
        return nested

    def writing_command(self, stages: Sequence[bytes]) -> bytes:
        """Build the command that writes the results of stages; the last stage is a ``$out`` or a ``$merge``.

        Args:
            stages: raw; the first is a source.

        Raises:
            CommandError: BSONObjectTooLarge, the stages contain too much.
        """
        elements = encode_elements({"cursor": {}}) + self._computing + self._writing
        body = self._command(COLLECTIONLESS, stages, b"".join(self.variables.values()), elements)
        check_size(len(body))
        return body

    async def collect(self, stage: Stage, room: Room) -> list[bytes]:
        """Collect all documents of a stage, and close it.

        Args:
            room: limits their size.

        Raises:
            TooLargeError: they are too large.
        """
        documents: list[bytes] = []
        try:
            while batch := await stage.next_batch(self.reading):
                documents += batch
                room.take(batch)
            return documents
        finally:
            self.operation.context.cursors.close(stage)

    def _command(self, collection: str, stages: Sequence[bytes], let: bytes, elements: bytes) -> bytes:
        command = (
            encode_elements({"aggregate": 1})
            if collection == COLLECTIONLESS
            else element(b"aggregate", STRING, string_value(collection))
        )
        body = from_elements(
            command
            + element(b"pipeline", ARRAY, array_of_documents(list(stages)))
            + element(b"collation", OBJECT, self.collation)
            + (element(b"let", OBJECT, from_elements(let)) if let else b"")
            + elements
        )
        return append(body, encode_elements({"$db": self.db}))


StageRunner: TypeAlias = Callable[[JoinEnvironment, Stage, Sequence[PipelineStage | bytes]], Awaitable[Stage]]
"""Runs stages of a pipeline, parsed or raw, on the documents of another stage."""


def _elements(body: bytes, names: Sequence[bytes]) -> bytes:
    fields = index(body)
    return b"".join(body[fields[name][1] : fields[name][3]] for name in names if name in fields)


async def open_part(operation: Operation, run_aggregate: AggregateRunner, body: bytes, namespace: str) -> Stage:
    """Open an aggregation as part of another one, regardless of the location of its data."""
    part = operation.part(_request(body))
    try:
        root = (await run_aggregate(part, namespace)).root
    finally:
        operation.retries += part.retries
    if isinstance(root, ShardStage):
        root.raise_for_error()
    return root


def _request(body: bytes) -> Request:
    return Request(OpMsg(op_msg(body, request_id=next_request_id())))


CONCURRENT_READS_MAX: Final = 8
"""Maximum number of concurrent aggregations of one stage."""


async def read_each(keys: Iterable[bytes], read: Callable[[bytes], Awaitable[list[bytes]]]) -> dict[bytes, list[bytes]]:
    """Read the documents for each key, several keys at a time.

    Raises:
        CommandError: the first failure, once the active reads have ended. No other read begins after it.
    """
    found: dict[bytes, list[bytes]] = {}
    failures: list[CommandError] = []
    waiting = iter(keys)

    async def read_some() -> None:
        for key in waiting:
            try:
                found[key] = await read(key)
            except CommandError as error:
                failures.append(error)
            if failures:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENT_READS_MAX):
            nursery.start_soon(read_some)
    if failures:
        raise failures[0]
    return found
