"""The recipient's pulling of session history, beside the documents."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from shardwright.shardd.session_history.table import HistoryTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import array_documents, find

_PAUSE_SECONDS: Final = 0.25
"""How long the donor is left alone when it had nothing more to tell."""


class HistoryPull:
    """Brings the donor's session history of one attempt into the table of this shard.

    Args:
        table: of this shard.
        ask: runs a command that may be repeated on the donor, given a database and the command; returns the raw body of
            the reply (`DonorConnection.command`). Nobody else should have to wait for it.
        session_id: of the migration.

    Attributes:
        statements: how many statements have been absorbed.
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
        """Pull until cancelled, at any point.

        Raises:
            CommandError: the donor, or the local mongod, refused.
            BackendError: the local mongod does not answer.
        """
        while True:
            await self.drain()
            await trio.sleep(_PAUSE_SECONDS)

    async def drain(self) -> None:
        """Pull everything that the donor has to tell at the moment; then a majority of this shard has it.

        After `CloneSource.wait_followed` on the donor, with writes blocked there, that is everything.

        Raises:
            CommandError: the donor, or the local mongod, refused.
            BackendError: the local mongod does not answer.
        """
        async with self._pulling:
            while await self._pull_batch():
                pass

    async def _pull_batch(self) -> bool:
        """Pull one batch; returns whether there was anything in it."""
        command = {"_getNextSessionMods": 1, "sessionId": self._session_id, "number": self._number}
        reply = await self._ask("admin", command)
        span = find(reply, b"oplog")
        if span is None:
            raise CommandError(ErrorCode.FailedToParse, "a reply to _getNextSessionMods without 'oplog'")
        statements = array_documents(reply, span)
        await self._table.absorb(statements)
        self._number += 1
        self.statements += len(statements)
        return bool(statements)
