"""Taking over the history of retryable writes from a donor, as statements about the collection under its new UUID."""

from collections.abc import Mapping
from typing import Any, Final

import trio
from bson.binary import Binary

from shardwright.shardd.local_mongod.raw_replies import required_array
from shardwright.shardd.migration.recipient.donor_link import DonorConnection
from shardwright.shardd.session_history.statement import ExecutedStatement
from shardwright.shardd.session_history.table import HistoryTable
from shardwright.sharding.resharding.participation import Participation
from shardwright.wire.rawbson import array_documents

_POLL_SECONDS: Final = 0.25
"""The pause after the donor had nothing more to hand out."""


class ReshardingHistory:
    """The history of one donor; a new session hands it out from the beginning.

    Args:
        table: this shard's table.
        participation: the operation.
    """

    def __init__(self, table: HistoryTable, participation: Participation) -> None:
        self._table = table
        self._participation = participation
        self._session_id = ""
        self._number = 0
        self._pulling = trio.Lock()

    async def follow(self, connection: DonorConnection, recipient: str, session_id: str) -> None:
        """Pull until cancelled.

        Raises:
            CommandError: the donor, or the local mongod, refused.
            BackendError: the local mongod does not answer.
        """
        while True:
            await self.drain(connection, recipient, session_id)
            await trio.sleep(_POLL_SECONDS)

    async def drain(self, connection: DonorConnection, recipient: str, session_id: str) -> None:
        """Pull everything that the donor has at the moment; on return a majority of this shard has it.

        Raises:
            CommandError: the donor, or the local mongod, refused.
            BackendError: the local mongod does not answer.
        """
        async with self._pulling:
            if session_id != self._session_id:
                self._session_id, self._number = session_id, 0
            session = {
                "reshardingUUID": Binary.from_uuid(self._participation.id),
                "recipient": recipient,
                "sessionId": session_id,
            }
            while await self._pull_batch(connection, session):
                pass

    async def _pull_batch(self, connection: DonorConnection, session: Mapping[str, Any]) -> bool:
        command = {"_shardsvrReshardingSessionHistory": 1, **session, "number": self._number}
        reply = await connection.command("admin", command)
        statements = array_documents(reply, required_array(reply, b"oplog"))
        await self._table.absorb([self._translated(each) for each in statements])
        self._number += 1
        return bool(statements)

    def _translated(self, raw: bytes) -> bytes:
        """A statement in terms of the resharded collection, of whose shard key nothing is known."""
        statement = ExecutedStatement.from_bson(raw)
        if statement.is_incomplete_history:
            return raw
        return statement._replace(collection_uuid=self._participation.id.bytes, key=None).to_bson()
