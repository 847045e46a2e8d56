"""Retryable writes that the test sends and retries by itself.

A driver retries a write once, and silently. Here the same bytes (session, number, statements) are sent until there is a
reply, through one router and then through another, so that a test can compare all replies.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.int64 import Int64

from tests.integration.raw_client import RawClient

Document = dict[str, Any]

RETRY_PAUSE_SECONDS: Final = 0.02
HEAL_SECONDS_MAX: Final = 45.0
ANSWER_SECONDS_MAX: Final = 10.0
"""Time limit for one router, after which the write is sent through the other."""

_CURSOR_NOT_FOUND: Final = 43

_NEVER_SENT: Final = 133
"""FailedToSatisfyReadPreference: a shard had no primary for too long, so nothing was sent to it."""

RETRYABLE_CODES: Final = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, _NEVER_SENT})
"""The errors after which a driver, or an application, retries a read (see "Retryable Reads" in the specifications)."""

_REPLY_AT: Final = 21
"""Offset of the body in an OP_MSG: after header, flags and the kind of its section."""

_ANSWER_FIELDS: Final[tuple[str, ...]] = ("n", "nModified", "upserted", "value", "writeErrors")
"""The parts of a reply that must be the same each time the write is sent."""


class WriteRefusedError(AssertionError):
    """A write failed with an error that no driver would retry, or was not answered in time."""


@dataclass(frozen=True)
class Write:
    """One retryable write command.

    Attributes:
        body: the command with ``lsid`` and ``txnNumber``.
    """

    database: str
    body: Document

    @classmethod
    def of(cls, database: str, command: Mapping[str, Any], session: "Session") -> "Write":
        """The next write of a session."""
        numbers = {"lsid": {"id": session.id}, "txnNumber": session.next_number()}
        return cls(database, {**command, **numbers, "writeConcern": {"w": "majority"}})


class Session:
    """A logical session that counts its writes."""

    def __init__(self) -> None:
        self.id = Binary.from_uuid(uuid.uuid4())
        self._number = 0

    def next_number(self) -> Int64:
        """The number of its next write."""
        self._number += 1
        return Int64(self._number)


class RetryingClient:
    """Sends commands to routers until one answers, starting with the first; for one thread.

    Attributes:
        resent: how often a command had to be sent again.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._connections: dict[str, RawClient] = {}
        self.resent = 0

    def close(self) -> None:
        """Close all connections; they are reopened when needed."""
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()

    def run(self, write: Write, *, router: int = 0, within: float = HEAL_SECONDS_MAX) -> Document:
        """Send a write until it is answered, first to the router with an index; returns the relevant part of the reply.

        Raises:
            WriteRefusedError: it failed with an error that must not be retried, or for too long.
        """
        return answer(self.run_whole(write, router=router, within=within))

    def run_whole(self, write: Write, *, router: int = 0, within: float = HEAL_SECONDS_MAX) -> Document:
        """Send a write until it is answered; returns the whole reply.

        Raises:
            WriteRefusedError: as `run`.
        """
        return self._repeat(write.database, write.body, _is_retryable_write, router, within)

    def read(self, database: str, body: Document, *, router: int = 0, within: float = HEAL_SECONDS_MAX) -> Document:
        """Send a command that only reads until it is answered; returns the whole reply.

        Raises:
            WriteRefusedError: as `run`.
        """
        return self._repeat(database, body, _is_retryable_read, router, within)

    def once(self, database: str, body: Document, *, router: int = 0) -> Document | None:
        """The reply of one router to a command that is sent once; None if it does not answer in time."""
        return self._send(self._addresses[router % len(self._addresses)], database, body)[0]

    def read_all(
        self, database: str, find: Document, *, router: int = 0, within: float = HEAL_SECONDS_MAX
    ) -> list[Any]:
        """All documents that a find returns, batch by batch; a lost cursor is reopened.

        Raises:
            WriteRefusedError: as `run`.
        """
        deadline = time.monotonic() + within
        while True:
            found = self._try_read_all(self._addresses[router % len(self._addresses)], database, find)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise WriteRefusedError(f"{find} was not read to its end within {within} s")
            self.resent += 1
            router += 1
            time.sleep(RETRY_PAUSE_SECONDS)

    def _try_read_all(self, address: str, database: str, find: Document) -> list[Any] | None:
        found: list[Any] = []
        command, batch = find, "firstBatch"
        while True:
            reply, trouble = self._send(address, database, command)
            if (
                reply is not None
                and trouble
                and not (_is_retryable_read(reply) or reply.get("code") == _CURSOR_NOT_FOUND)
            ):
                raise WriteRefusedError(f"{command} was answered with {reply}")
            if reply is None or trouble:
                return None
            found += reply["cursor"][batch]
            if not reply["cursor"]["id"]:
                return found
            command = {"getMore": reply["cursor"]["id"], "collection": find["find"], "batchSize": find["batchSize"]}
            batch = "nextBatch"

    def _repeat(
        self,
        database: str,
        body: Document,
        is_retryable: Callable[[Document], bool],
        router: int,
        within: float,
    ) -> Document:
        deadline = time.monotonic() + within
        while True:
            reply, trouble = self._send(self._addresses[router % len(self._addresses)], database, body)
            if reply is not None and not trouble:
                return reply
            if reply is not None and not is_retryable(reply):
                raise WriteRefusedError(f"{body} was answered with {reply}")
            if time.monotonic() > deadline:
                raise WriteRefusedError(f"{body} was not done within {within} s: {trouble}")
            self.resent += 1
            router += 1
            time.sleep(RETRY_PAUSE_SECONDS)

    def _send(self, address: str, database: str, body: Document) -> tuple[Document | None, str]:
        """The reply if there is one, and the problem, which is empty if there is none."""
        try:
            connection = self._connections.get(address) or self._connect(address)
            connection.send_command(body, db=database)
            frame = connection.receive()
        except OSError as error:
            self._disconnect(address)
            return None, f"{address}: {error!r}"
        if not frame:
            self._disconnect(address)
            return None, f"{address} closed the connection"
        reply = bson.decode(frame[_REPLY_AT:])
        if reply.get("ok") == 1 and "writeConcernError" not in reply:
            return reply, ""
        return reply, f"{address}: {reply}"

    def _connect(self, address: str) -> RawClient:
        connection = self._connections[address] = RawClient(address)
        connection.socket.settimeout(ANSWER_SECONDS_MAX)
        return connection

    def _disconnect(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.socket.close()


def answer(reply: Document) -> Document:
    """The parts of a reply about the write itself, which do not depend on the server."""
    said: Document = {field: reply[field] for field in _ANSWER_FIELDS if field in reply}
    if "lastErrorObject" in reply:
        said["lastErrorObject"] = reply["lastErrorObject"]
    return said


def _is_retryable_write(reply: Document) -> bool:
    concern = reply.get("writeConcernError", {})
    return (
        "RetryableWriteError" in reply.get("errorLabels", ())
        or reply.get("code") == _NEVER_SENT
        or concern.get("code") in RETRYABLE_CODES
    )


def _is_retryable_read(reply: Document) -> bool:
    return reply.get("code") in RETRYABLE_CODES
