"""``hello`` and its older names: how clients learn what they talk to, and that it is about to go away."""

from datetime import UTC, datetime
from typing import Any

import bson
import trio

from shardwright.router.operation import Operation
from shardwright.router.registry import Reply, command
from shardwright.router.router import Router
from shardwright.wire import compression
from shardwright.wire.client_metadata import MONGOS_BYTES_MAX, parse_client_metadata
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.hello import (
    MAX_WIRE_VERSION,
    MIN_WIRE_VERSION,
    MONGOS,
    HelloRequest,
    await_budget_ms,
    parse_hello,
)
from shardwright.wire.limits import (
    BSON_OBJECT_BYTES_MAX,
    LOGICAL_SESSION_TIMEOUT_MINUTES,
    MESSAGE_BYTES_MAX,
    WRITE_BATCH_OPERATIONS_MAX,
)
from shardwright.wire.message import MORE_TO_COME, op_msg
from shardwright.wire.rawbson import decode_document
from shardwright.wire.transport.client_connection import ClientConnection


@command("hello", aliases=("isMaster", "ismaster"), deadline_from_max_time=False, api_versions=("1",))
async def hello(operation: Operation) -> Reply:
    """Tells that this is a router, its limits, and, when asked to wait, when it begins to shut down."""
    request, client = operation.request, operation.client
    _take_metadata(operation)
    wanted = parse_hello(
        request.body, request.fields, exhaust_allowed=request.message.is_exhaust_allowed, assertions=MONGOS
    )
    if wanted.compression is not None:
        client.compressors = tuple(compression.negotiate(wanted.compression))
    client.allow_interruption()
    while True:
        document = await _answer(operation, wanted)
        if not wanted.exhaust_allowed or wanted.topology_version is None:
            return document
        reply_id = next_request_id()
        document["ok"] = 1.0
        document.update(operation.router.gossip())
        await client.send(
            op_msg(bson.encode(document), request_id=reply_id, response_to=operation.response_to, flags=MORE_TO_COME)
        )
        operation.response_to = reply_id
        wanted = wanted.following(operation.router.topology_version)


@command("isdbgrid")
async def isdbgrid(operation: Operation) -> Reply:
    """Tells that this is a router."""
    return {"isdbgrid": 1, "hostname": operation.router.options.address}


def _take_metadata(operation: Operation) -> None:
    """Keep what the client says of itself in its first hello.

    Raises:
        CommandError: ClientMetadataCannotBeMutated, it said so before.
    """
    request, client = operation.request, operation.client
    span = request.fields.get(b"client")
    if span is None:
        return
    if client.metadata is not None:
        raise CommandError(
            ErrorCode.ClientMetadataCannotBeMutated, "The client metadata document may only be sent in the first hello"
        )
    checked = parse_client_metadata(request.body, span, bytes_max=MONGOS_BYTES_MAX)
    client.metadata = decode_document(checked.document)


async def _answer(operation: Operation, wanted: HelloRequest) -> dict[str, Any]:
    """The reply, after the wait that the client allows.

    Raises:
        CommandError: ShutdownInProgress, the router is shutting down.
    """
    router = operation.router
    budget_ms = await_budget_ms(wanted, router.topology_version, assertions=MONGOS)
    if budget_ms is not None:
        with trio.move_on_after(budget_ms / 1000):
            await router.wait_for_topology_change()
    if router.is_shutting_down:
        raise CommandError(
            ErrorCode.ShutdownInProgress,
            "Router is shutting down",
            extra={
                "topologyVersion": router.topology_version.document(),
                "remainingQuiesceTimeMillis": bson.Int64(router.remaining_quiesce_ms),
            },
        )
    return _describe(router, operation.client, wanted, is_hello=operation.request.name == "hello")


def _describe(router: Router, client: ClientConnection, wanted: HelloRequest, *, is_hello: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "isWritablePrimary" if is_hello else "ismaster": True,
        "msg": "isdbgrid",
        "topologyVersion": router.topology_version.document(),
    }
    if wanted.hello_ok:
        document["helloOk"] = True
    document |= {
        "maxBsonObjectSize": BSON_OBJECT_BYTES_MAX,
        "maxMessageSizeBytes": MESSAGE_BYTES_MAX,
        "maxWriteBatchSize": WRITE_BATCH_OPERATIONS_MAX,
        "localTime": datetime.now(UTC),
        "logicalSessionTimeoutMinutes": LOGICAL_SESSION_TIMEOUT_MINUTES,
        "connectionId": client.id,
        "maxWireVersion": MAX_WIRE_VERSION,
        "minWireVersion": MIN_WIRE_VERSION,
    }
    if client.compressors:
        document["compression"] = list(client.compressors)
    return document
