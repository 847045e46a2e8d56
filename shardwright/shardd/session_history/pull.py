"""Pulling the session history from the donor, concurrently with the documents."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from shardwright.shardd.session_history.table import HistoryTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import array_documents, find

_POLL_SECONDS: Final = 0.25
"""The pause after the donor had nothing more to hand out."""


class HistoryPull:
    """Transfers the session history to this shard's table during one attempt.

    Args:
        table: this shard's table.
        ask: runs an idempotent command on the donor, given a database and the command; returns the raw body of the
            reply (`DonorConnection.command`). It should use a connection of its own.
        session_id: the migration session id.

    Attributes:
        statements: number of statements stored so far.
    """

    def __init__(
        self, table: HistoryTable, ask: Callable[[str, Mapping[str, Any]], Awaitable[bytes]], session_id: str
    ) -> None:
        self.statements = 0
        self._table = table
        self._ask = ask
        self._session_id = session_id
        self._number = 0
        self._pulling = trio.Lock()

    async def follow(self) -> None:
        """Pull until cancelled, which is safe at any point.

        Raises:
            CommandError: the donor, or the local mongod, refused.
            BackendError: the local mongod does not answer.
        """
        while True:
            await self.drain()
            await trio.sleep(_POLL_SECONDS)

    async def drain(self) -> None:
        """Pull everything that the donor has at the moment; on return a majority of this shard has it.

        If the donor blocks writes and has returned from `CloneSource.wait_followed`, that is the complete history.

        Raises:
            CommandError: the donor, or the local mongod, refused.
            BackendError: the local mongod does not answer.
        """
        async with self._pulling:
            while await self._pull_batch():
                pass

    async def _pull_batch(self) -> bool:
        """Pull one batch; returns whether it contained anything."""
        command = {"_getNextSessionMods": 1, "sessionId": self._session_id, "number": self._number}
        reply = await self._ask("admin", command)
        span = find(reply, b"oplog")
        if span is None:
            raise CommandError(ErrorCode.FailedToParse, "the reply to _getNextSessionMods has no 'oplog'")
        statements = array_documents(reply, span)
        await self._table.absorb(statements)
        self._number += 1
        self.statements += len(statements)
        return bool(statements)
