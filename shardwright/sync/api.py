"""HTTP on loopback with mongosync's paths, to control a replication."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import h11
from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from pymongo.errors import PyMongoError

from shardwright.sync.comparing import NoMomentError
from shardwright.sync.handover import CommitError
from shardwright.sync.replication import StateError
from shardwright.sync.session import Sync

LOOPBACK: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 1_000_000
_READ_BYTES: Final = 65_536
_DEFAULT_STATE: Final = "~/.local/state"

Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class Api:
    """The HTTP requests of one replication."""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync
        self._handlers: Mapping[tuple[str, str], Handler] = {
            ("GET", "progress"): self._progress,
            ("GET", "failures"): self._failures,
            ("POST", "start"): self._start,
            ("POST", "pause"): self._pause,
            ("POST", "resume"): self._resume,
            ("POST", "commit"): self._commit,
            ("POST", "reverse"): self._reverse,
            ("POST", "abort"): self._abort,
            ("POST", "verify"): self._verify,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                request, body = await _request(connection, reader)
                if request is None:
                    break
                status, answer = await self._answer(request, body)
                await _send(connection, writer, status, answer)
                connection.start_next_cycle()
        except h11.LocalProtocolError:
            pass  # the client wants the connection closed after the answer
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await _send(connection, writer, HTTPStatus.BAD_REQUEST, {"success": False, "error": str(error)})
        except ConnectionError:
            pass  # the client has gone
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: h11.Request, body: bytes) -> tuple[HTTPStatus, Mapping[str, Any]]:
        name = request.target.decode().removeprefix("/api/v1/")
        handler = self._handlers.get((request.method.decode(), name))
        if handler is None:
            return HTTPStatus.NOT_FOUND, {"success": False, "error": f"no {request.method.decode()} {name}"}
        if any(header == b"origin" for header, _ in request.headers):
            return HTTPStatus.FORBIDDEN, {"success": False, "error": "requests of web pages are not answered"}
        try:
            arguments = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, {"success": False, "error": str(error)}
        if not isinstance(arguments, dict):
            return HTTPStatus.BAD_REQUEST, {"success": False, "error": "the body must be a JSON object"}
        try:
            return HTTPStatus.OK, {"success": True, **await handler(arguments)}
        except (StateError, CommitError, NoMomentError) as error:
            return HTTPStatus.CONFLICT, {"success": False, "error": str(error)}
        except PyMongoError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"success": False, "error": str(error)}

    async def _progress(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"progress": self._sync.progress()}

    async def _failures(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        shown, total = await self._sync.failures()
        return {"failures": shown, "total": total}

    async def _start(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the progress. A replication starts with its process, so a start request has nothing left to do."""
        return {"progress": self._sync.progress()}

    async def _pause(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._sync.pause()
        return {}

    async def _resume(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._sync.resume(retry_failures=bool(arguments.get("retryFailures")))
        return {}

    async def _commit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._sync.commit()
        return {}

    async def _reverse(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._sync.reverse()
        return {}

    async def _abort(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._sync.abort()
        return {}

    async def _verify(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"verification": (await self._sync.verify()).document()}


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request | None, bytes]:
    """Read the next request with its body; None at the end of the connection."""
    request, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
            if len(body) > BODY_BYTES_MAX:
                raise h11.RemoteProtocolError("the body is too large")
        elif isinstance(event, h11.EndOfMessage):
            return request, body
        else:
            return None, b""


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, status: HTTPStatus, answer: Mapping[str, Any]
) -> None:
    content = dumps(answer, json_options=RELAXED_JSON_OPTIONS).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    for event in (
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=content),
        h11.EndOfMessage(),
    ):
        writer.write(connection.send(event) or b"")
    await writer.drain()


def state_directory() -> Path:
    """Return the directory in which running replications publish the addresses of their APIs."""
    return Path(os.environ.get("XDG_STATE_HOME") or _DEFAULT_STATE).expanduser() / "shardwright" / "sync"


def publish(replication_id: str, port: int) -> Path:
    """Publish the API port of a replication, and return the file."""
    directory = state_directory()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{replication_id}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"port": port, "pid": os.getpid()}), encoding="utf-8")
    new.replace(path)  # readers never see a partial file
    return path


def unpublish(path: Path) -> None:
    """Remove a published address, unless another process has published its own since."""
    with suppress(FileNotFoundError):
        if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
            path.unlink()


def published_port(replication_id: str) -> int | None:
    """Return the port of a replication's API; None if none is published."""
    path = state_directory() / f"{replication_id}.json"
    if not path.exists():
        return None
    port: int = json.loads(path.read_text(encoding="utf-8"))["port"]
    return port
