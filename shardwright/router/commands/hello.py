"""Commands that clients send when they connect: ``hello`` and its older names, ``ping``, ``buildInfo``, ``hostInfo`` …

``hello`` also notifies waiting clients of the router's shutdown.
"""

import os
import platform
import ssl
import struct
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import bson
import trio
from bson.int64 import Int64

from shardwright.daemon.users import UserName
from shardwright.router.commands.authentication import authenticate_by_certificate, start_conversation
from shardwright.router.context.options import MONGODB_VERSION, MONGODB_VERSION_ARRAY
from shardwright.router.operations.fail_command import call_of, fail_if_asked
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.reply_builder import Reply, signed
from shardwright.wire import compression
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, wrong_type
from shardwright.wire.frames import next_request_id
from shardwright.wire.hello import (
    MAX_WIRE_VERSION,
    MIN_WIRE_VERSION,
    MONGOS,
    MONGOS_BYTES_MAX,
    HelloRequest,
    await_budget_ms,
    parse_client_metadata,
    parse_hello,
)
from shardwright.wire.limits import (
    BSON_OBJECT_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    WRITE_BATCH_OPERATIONS_MAX,
)
from shardwright.wire.message import MORE_TO_COME, op_msg
from shardwright.wire.rawbson import BOOL, NULL, OBJECT, STRING, decode_document, spans, type_name
from shardwright.wire.request import Request
from shardwright.wire.transport.cluster_auth import EXTERNAL_DATABASE

_MECHANISMS: Final = b"saslSupportedMechs"
_SPECULATIVE: Final = b"speculativeAuthenticate"
_FIRST_STEPS: Final = (b"saslStart", b"authenticate")
_UNKNOWN_STEP: Final = 51769
_CHECKED: Final = {_MECHANISMS: (STRING, OBJECT), b"hostInfo": (STRING,), b"loadBalanced": (BOOL,)}


_NAME: Final = "hello"
_OLD_NAMES: Final = ("isMaster", "ismaster")


async def hello(operation: Operation) -> Reply:
    """Identifies this server as a router with its limits and, when asked to wait, reports its shutdown."""
    request, client = operation.request, operation.client
    _check_strings(request)
    _take_metadata(operation)
    wanted = parse_hello(
        request.body, request.fields, exhaust_allowed=request.message.is_exhaust_allowed, assertions=MONGOS
    )
    if wanted.compression is not None:
        client.compressors = tuple(compression.negotiate(wanted.compression))
    log_in = await _log_in_fields(operation)
    client.allow_interruption()
    if not wanted.exhaust_allowed or wanted.topology_version is None:
        return {**await _answer(operation, wanted), **log_in}
    with operation.context.clients.streaming(request.name):
        await _stream(operation, wanted, log_in)


async def _stream(operation: Operation, wanted: HelloRequest, log_in: dict[str, Any]) -> NoReturn:
    """Send a reply after each change, until the connection ends.

    For fail points, each reply after the first is a command of its own, as in MongoDB.
    """
    call = call_of(operation, (_NAME,) if operation.request.name == _NAME else _OLD_NAMES)
    while True:
        document = {**await _answer(operation, wanted), **log_in}
        reply_id = next_request_id()
        document["ok"] = 1.0
        document.update(operation.gossip())
        reply = op_msg(
            bson.encode(document), request_id=reply_id, response_to=operation.response_to, flags=MORE_TO_COME
        )
        await operation.client.send(signed(reply, operation.context.signer))
        operation.response_to = reply_id
        wanted = wanted.following(operation.context.quiesce.topology_version)
        await fail_if_asked(operation, call)


async def _log_in_fields(operation: Operation) -> dict[str, Any]:
    """Return the requested fields for log-ins: the mechanisms of a user, and the first step of a log-in."""
    request = operation.request
    fields: dict[str, Any] = {}
    account = None
    if _MECHANISMS in request.fields:
        operation.context.log_ins.counts.mechanisms_asked += 1
        account = await operation.context.log_ins.scram.account_of(_user_asked_for(request))
        if account.mechanisms is not None:
            fields["saslSupportedMechs"] = account.mechanisms
    first = Arguments.of(request, "hello").maybe_nested(_SPECULATIVE)
    if first is not None:
        step = _first_step(first)
        with suppress(CommandError):  # the client then logs in with a command of its own, which reports the error
            if step == b"saslStart":
                fields["speculativeAuthenticate"] = await start_conversation(
                    operation, first, first.string(b"db"), is_speculative=True, known=account
                )
            else:
                # Drivers omit the database, because only one database has such users.
                db = first.string(b"db") if first.has(b"db") else EXTERNAL_DATABASE
                fields["speculativeAuthenticate"] = await authenticate_by_certificate(
                    operation, first, db, is_speculative=True
                )
    return fields


def _first_step(command: Arguments) -> bytes:
    """Return the name of the command that begins a log-in inside a hello.

    Raises:
        CommandError: BadValue, there is none; 51769, it is another command.
    """
    name = next((name for name, _ in spans(command.document)), None)
    if name is None:
        raise CommandError(ErrorCode.BadValue, "hello.speculativeAuthenticate must be a non-empty Object")
    if name not in _FIRST_STEPS:
        text = name.decode(errors="replace")
        raise CommandError(_UNKNOWN_STEP, f"hello.speculativeAuthenticate unknown command: {text}")
    return name


def _check_strings(request: Request) -> None:
    """Check the types of arguments that may otherwise stay unread."""
    for name, kinds in _CHECKED.items():
        span = request.fields.get(name)
        if span is not None and span[0] not in (NULL, *kinds):
            raise wrong_type(f"hello.{name.decode()}", span[0], *map(type_name, kinds))


def _user_asked_for(request: Request) -> UserName:
    db, dot, user = str(request.get(_MECHANISMS)).partition(".")
    if not dot:
        raise CommandError(ErrorCode.BadValue, "UserName must contain a '.' separated database.user pair")
    return UserName(user, db)


async def isdbgrid(operation: Operation) -> Reply:
    """Identifies this server as a router."""
    return {"isdbgrid": 1, "hostname": operation.context.options.address}


def _take_metadata(operation: Operation) -> None:
    """Store the client metadata of the first hello, if it has any; refuse later metadata."""
    request, client = operation.request, operation.client
    span = request.fields.get(b"client")
    if span is None:
        client.metadata = client.metadata or {}
        return
    if client.metadata is not None:
        raise CommandError(
            ErrorCode.ClientMetadataCannotBeMutated, "The client metadata document may only be sent in the first hello"
        )
    checked = parse_client_metadata(request.body, span, bytes_max=MONGOS_BYTES_MAX)
    client.metadata = decode_document(checked.document)


async def _answer(operation: Operation, wanted: HelloRequest) -> dict[str, Any]:
    """Return the reply, after the wait that the client requested; in quiesce mode, raise ShutdownInProgress."""
    quiesce = operation.context.quiesce
    budget_ms = await_budget_ms(wanted, quiesce.topology_version, assertions=MONGOS)
    if budget_ms is not None:
        with trio.move_on_after(budget_ms / 1000):
            await quiesce.wait_begun()
    if quiesce.has_begun:
        raise CommandError(
            ErrorCode.ShutdownInProgress,
            "Mongos is in quiesce mode and will shut down",
            extra={
                "topologyVersion": quiesce.topology_version.document(),
                "remainingQuiesceTimeMillis": bson.Int64(quiesce.remaining_ms),
            },
        )
    return _describe(operation, wanted)


def _describe(operation: Operation, wanted: HelloRequest) -> dict[str, Any]:
    client = operation.client
    document: dict[str, Any] = {
        "isWritablePrimary" if operation.request.name == "hello" else "ismaster": True,
        "msg": "isdbgrid",
        "topologyVersion": operation.context.quiesce.topology_version.document(),
    }
    if wanted.hello_ok:
        document["helloOk"] = True
    document |= {
        "maxBsonObjectSize": BSON_OBJECT_BYTES_MAX,
        "maxMessageSizeBytes": MESSAGE_BYTES_MAX,
        "maxWriteBatchSize": WRITE_BATCH_OPERATIONS_MAX,
        "localTime": datetime.now(UTC),
        "logicalSessionTimeoutMinutes": operation.context.parameters["localLogicalSessionTimeoutMinutes"],
        "connectionId": client.id,
        "maxWireVersion": MAX_WIRE_VERSION,
        "minWireVersion": MIN_WIRE_VERSION,
    }
    if client.compressors:
        document["compression"] = list(client.compressors)
    return document


_POINTER_BITS: Final = struct.calcsize("P") * 8


async def ping(operation: Operation) -> Reply:
    """Replies."""
    return {}


async def build_info(operation: Operation) -> Reply:
    """The version of MongoDB that this router is compatible with."""
    return {
        "version": MONGODB_VERSION,
        "gitVersion": "",
        "modules": ["shardwright"],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": list(MONGODB_VERSION_ARRAY),
        "openssl": {"running": ssl.OPENSSL_VERSION, "compiled": ssl.OPENSSL_VERSION},
        "buildEnvironment": {
            "distmod": "python",
            "distarch": platform.machine(),
            "cc": platform.python_compiler(),
            "target_arch": platform.machine(),
            "target_os": platform.system().lower(),
        },
        "bits": _POINTER_BITS,
        "debug": False,
        "maxBsonObjectSize": BSON_OBJECT_BYTES_MAX,
    }


async def whats_my_uri(operation: Operation) -> Reply:
    """The client's address as the router sees it."""
    return {"you": operation.client.peer}


async def echo(operation: Operation) -> Reply:
    """Returns the command."""
    return {"echo": operation.request.document}


async def host_info(operation: Operation) -> Reply:
    """The machine and the operating system that this router runs on."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory_mb = pages * page_bytes >> 20
    cores = os.cpu_count() or 1
    return {
        "system": {
            "currentTime": datetime.now(UTC),
            "hostname": operation.context.options.address,
            "cpuAddrSize": _POINTER_BITS,
            "memSizeMB": Int64(memory_mb),
            "memLimitMB": Int64(memory_mb),
            "numCores": cores,
            "cpuArch": platform.machine(),
            "numaEnabled": False,
        },
        "os": {
            "type": platform.system(),
            "name": _distribution(),
            "version": f"Kernel {platform.release()}",
        },
        "extra": {
            "versionString": platform.version(),
            "libcVersion": platform.libc_ver()[1],
            "kernelVersion": platform.release(),
            "pageSize": Int64(page_bytes),
            "numPages": pages,
        },
    }


def _distribution() -> str:
    release = Path("/etc/os-release")
    lines = release.read_text(encoding="utf-8").splitlines() if release.exists() else []
    return next((line for line in lines if line.startswith("PRETTY_NAME=")), platform.system())
