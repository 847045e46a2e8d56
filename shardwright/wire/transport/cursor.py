"""Reading a cursor of another server, batch by batch or to its end.

All daemons read cursors with this module, including tailable ones. Only the cursors that a router keeps for its clients
differ (`router.cursors`): they forward batches, and send ``getMore`` when the client does.

Reading the first batch opens the cursor. Closing it before the last batch kills it. The caller decides how to send
commands: through a pool, on a separate connection, or to one member of a replica set.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import bson
import trio
from bson.int64 import Int64

from shardwright.wire.cursor_batch import CursorBatch, DecodedBatch, RawBatch
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg

logger = get_logger("wire.cursor")

REPLY_SECONDS_MAX: Final = 600.0
"""Default time limit for one batch: as long as a mongod keeps an idle cursor."""

KILL_SECONDS_MAX: Final = 5.0

Exchange = Callable[[bytes], Awaitable[bytes]]
"""Sends a request frame and returns the reply's frame, like `Connection.exchange`."""

RunCommand = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Runs a command on a database and returns the decoded reply, like `Connection.command`."""

Batch = TypeVar("Batch", bound=CursorBatch[Any])
Document = TypeVar("Document")


class Cursor(ABC, Generic[Batch, Document]):
    """A cursor. Leaving its context closes it; iterating over it yields its batches, including empty ones.

    Args:
        command: a command that opens a cursor, such as ``find``, ``aggregate`` or ``listCollections``, without ``$db``.
        options: fields for every command of the cursor, such as ``lsid``.
        reply_seconds_max: time limit for one batch.

    Attributes:
        id: 0 before the cursor is opened and after it has ended.
    """

    def __init__(
        self,
        db: str,
        command: Mapping[str, Any],
        *,
        options: Mapping[str, Any] | None = None,
        reply_seconds_max: float = REPLY_SECONDS_MAX,
    ) -> None:
        self.id = 0
        self.is_exhausted = False
        self._db = db
        self._next = dict(command)
        self._options = dict(options or {})
        self._reply_seconds_max = reply_seconds_max
        self._collection = ""

    def resume(self, cursor_id: int, collection: str) -> Self:
        """Continue a cursor that is already open, instead of opening one; return ``self``."""
        self.id = cursor_id
        self._collection = collection
        self._next = {"getMore": Int64(cursor_id), "collection": collection}
        return self

    async def next_batch(self, **arguments: object) -> Batch:
        """Read the next batch, which may be empty. Must not be called after the last one.

        Raises:
            CommandError: the server refuses, or the cursor was killed; NetworkInterfaceExceededTimeLimit, the server
                took too long.
            BackendError: the server does not answer.
        """
        assert not self.is_exhausted, "the last batch was read"
        batch = await self._ask_in_time({**self._next, **self._options, **arguments})
        self._note(batch)
        return batch

    async def next_documents(self) -> list[Document]:
        """Read batches until one has documents; return them, or none at the end. Raises as `next_batch`."""
        async for batch in self:
            found = list(batch.documents())
            if found:
                return found
        return []

    async def all_documents(self) -> list[Document]:
        """Read all remaining documents. Closes the cursor, even on failure. Raises as `next_batch`."""
        async with self:
            return [document async for batch in self for document in batch.documents()]

    async def close(self) -> None:
        """Kill the cursor if it is open, even when cancelled. A failure is logged; mongod ends idle cursors itself."""
        cursor_id, self.id = self.id, 0
        if not cursor_id:
            return
        kill = {"killCursors": self._collection, "cursors": [Int64(cursor_id)]}
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILL_SECONDS_MAX) as scope:
            try:
                await self._run(kill)
            except (BackendError, CommandError) as error:
                self._log_kill_failed(str(error))
        if scope.cancelled_caught:
            self._log_kill_failed("no answer")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        if self.is_exhausted:
            raise StopAsyncIteration
        return await self.next_batch()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _note(self, batch: Batch) -> None:
        self.id = batch.cursor_id
        self.is_exhausted = not self.id
        self._collection = batch.namespace.partition(".")[2]
        self._next = {"getMore": Int64(self.id), "collection": self._collection}

    async def _ask_in_time(self, command: Mapping[str, Any]) -> Batch:
        try:
            with trio.fail_after(self._reply_seconds_max):
                return await self._ask(command)
        except trio.TooSlowError:
            raise CommandError(
                ErrorCode.NetworkInterfaceExceededTimeLimit,
                f"a cursor on database {self._db} returned no batch within {self._reply_seconds_max:g} s",
            ) from None
        except BackendError:
            self.id = 0  # a mongod ends the cursor when its client disconnects in a getMore
            raise

    def _log_kill_failed(self, reason: str) -> None:
        namespace = f"{self._db}.{self._collection}"
        logger.info("Could not kill a cursor", namespace=namespace, error=reason)

    @abstractmethod
    async def _ask(self, command: Mapping[str, Any]) -> Batch:
        """Run a command and return the batch in its reply."""

    @abstractmethod
    async def _run(self, command: Mapping[str, Any]) -> object:
        """Run a command, ignoring an error in its reply."""


class RawCursor(Cursor[RawBatch, bytes]):
    """A cursor that returns raw documents; ``exchange`` sends its commands."""

    def __init__(
        self,
        exchange: Exchange,
        db: str,
        command: Mapping[str, Any],
        *,
        options: Mapping[str, Any] | None = None,
        reply_seconds_max: float = REPLY_SECONDS_MAX,
    ) -> None:
        super().__init__(db, command, options=options, reply_seconds_max=reply_seconds_max)
        self._exchange = exchange

    def next_request(self, **arguments: object) -> bytes:
        """Build the request for the next batch, for a caller that sends it and passes the reply to `take`."""
        return self._frame({**self._next, **self._options, **arguments})

    def take(self, reply: bytes) -> RawBatch:
        """Take the batch from the reply to `next_request`. Raises as `next_batch`."""
        batch = RawBatch(reply)
        self._note(batch)
        return batch

    async def _ask(self, command: Mapping[str, Any]) -> RawBatch:
        return RawBatch(await self._run(command))

    async def _run(self, command: Mapping[str, Any]) -> bytes:
        return await self._exchange(self._frame(command))

    def _frame(self, command: Mapping[str, Any]) -> bytes:
        return op_msg(bson.encode({**command, "$db": self._db}), request_id=next_request_id())


class DecodedCursor(Cursor[DecodedBatch, dict[str, Any]]):
    """A cursor that returns decoded documents; ``run_command`` runs its commands."""

    def __init__(
        self,
        run_command: RunCommand,
        db: str,
        command: Mapping[str, Any],
        *,
        options: Mapping[str, Any] | None = None,
        reply_seconds_max: float = REPLY_SECONDS_MAX,
    ) -> None:
        super().__init__(db, command, options=options, reply_seconds_max=reply_seconds_max)
        self._run_command = run_command

    async def _ask(self, command: Mapping[str, Any]) -> DecodedBatch:
        return DecodedBatch(await self._run(command))

    async def _run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        return await self._run_command(self._db, command)
