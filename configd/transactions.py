"""Transactions on the own mongod: the only way in which anything about placement is written.

What a transaction does is a function from the catalog as it is to writes. It may run more than once, always from the
start, so it must not have effects outside the transaction.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from daemon.logs import get_logger
from wire.errors import BackendError, CommandError

logger = get_logger("configd.transactions")

T = TypeVar("T")

ATTEMPTS_MAX: Final = 10
"""How often a transaction is begun that conflicts with the writes of others before its caller is told."""

COMMIT_ATTEMPTS_MAX: Final = 5
"""How often a commit is sent whose outcome is unknown; mongod commits the same transaction only once."""

TRANSIENT: Final = "TransientTransactionError"
"""The label of errors after which a transaction is worth running again from its start."""

_DOCUMENTS_PER_INSERT: Final = 10_000
_ABORT_SECONDS_MAX: Final = 1.0
_DB: Final = "config"


class Commands(Protocol):
    """What runs commands on the primary mongod."""

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply.

        Raises:
            CommandError: the reply says ``ok: 0``.
            BackendError: mongod does not answer.
        """


class Transaction:
    """Reads of one snapshot of the config database, and writes that will be seen together or not at all."""

    def __init__(self, mongod: Commands, session: Mapping[str, Any]) -> None:
        self._mongod = mongod
        self._session = {**session, "autocommit": False}
        self.is_started = False

    async def find(
        self,
        collection: str,
        query: Mapping[str, Any],
        *,
        sort: Mapping[str, int] | None = None,
        limit: int = 0,
    ) -> list[dict[str, Any]]:
        """The documents that match."""
        command: dict[str, Any] = {"find": collection, "filter": query}
        if sort is not None:
            command["sort"] = sort
        if limit:
            command["limit"] = limit
        cursor = (await self._run(command))["cursor"]
        documents: list[dict[str, Any]] = cursor["firstBatch"]
        while cursor["id"]:
            cursor = (await self._run({"getMore": Int64(cursor["id"]), "collection": collection}))["cursor"]
            documents += cursor["nextBatch"]
        return documents

    async def find_one(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> dict[str, Any] | None:
        """The first document that matches, None when there is none."""
        documents = await self.find(collection, query, sort=sort, limit=1)
        return documents[0] if documents else None

    async def insert(self, collection: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Insert documents, however many.

        Raises:
            CommandError: DuplicateKey, or what else mongod says.
        """
        rest = iter(documents)
        while batch := list(islice(rest, _DOCUMENTS_PER_INSERT)):
            await self._write({"insert": collection, "documents": batch})

    async def replace(self, collection: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Write whole documents over those of the same ``_id``, or insert them where there is none."""
        updates = [{"q": {"_id": document["_id"]}, "u": document, "upsert": True} for document in documents]
        if updates:
            await self._write({"update": collection, "updates": updates})

    async def update(self, collection: str, query: Mapping[str, Any], change: Mapping[str, Any]) -> int:
        """Change the one document that matches; returns how many did, 0 or 1."""
        reply = await self._write({"update": collection, "updates": [{"q": query, "u": change}]})
        return int(reply["n"])

    async def upsert(self, collection: str, query: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        """Change the one document that matches, or insert it."""
        await self._write({"update": collection, "updates": [{"q": query, "u": change, "upsert": True}]})

    async def delete(self, collection: str, query: Mapping[str, Any]) -> int:
        """Delete all documents that match; returns how many there were."""
        reply = await self._write({"delete": collection, "deletes": [{"q": query, "limit": 0}]})
        return int(reply["n"])

    async def commit(self) -> None:
        """Make the writes durable on a majority of the members.

        Raises:
            CommandError: the transaction was not committed, or not on a majority; with `TRANSIENT` it certainly had no
                effect.
            BackendError: the outcome is unknown.
        """
        if not self.is_started:
            return
        command = {"commitTransaction": 1, **self._session, "writeConcern": {"w": "majority"}}
        for attempt in range(1, COMMIT_ATTEMPTS_MAX + 1):
            try:
                reply = await self._mongod.command("admin", command)
            except BackendError:
                if attempt == COMMIT_ATTEMPTS_MAX:
                    raise
                continue
            if "writeConcernError" in reply:
                raise CommandError.from_reply(reply["writeConcernError"])
            return

    async def abort(self) -> None:
        """Give up the writes. Best effort: mongod itself ends a transaction that is not continued."""
        with trio.move_on_after(_ABORT_SECONDS_MAX, shield=True):
            try:
                await self._mongod.command("admin", {"abortTransaction": 1, **self._session})
            except (CommandError, BackendError) as error:
                logger.debug("A transaction had ended before it was aborted", error=str(error))

    async def _write(self, command: Mapping[str, Any]) -> dict[str, Any]:
        reply = await self._run(command)
        for failure in reply.get("writeErrors", ()):
            raise CommandError.from_reply(failure)
        return reply

    async def _run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        if self.is_started:
            return await self._mongod.command(_DB, {**command, **self._session})
        self.is_started = True
        first = {"startTransaction": True, "readConcern": {"level": "snapshot"}}
        return await self._mongod.command(_DB, {**command, **first, **self._session})


class TransactionRunner:
    """Runs transactions one after the other or at once, each under a session that none of the others uses."""

    def __init__(self, mongod: Commands) -> None:
        self._mongod = mongod
        self._idle_sessions: list[_Session] = []

    async def run(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """The result of ``work``, whose writes have been committed on a majority.

        Work that met a write conflict is run again, at most `ATTEMPTS_MAX` times in all.

        Raises:
            CommandError: from ``work``, nothing was written; from the commit, see `Transaction.commit`.
            BackendError: mongod does not answer; whether the writes were committed is unknown.
        """
        session = self._idle_sessions.pop() if self._idle_sessions else _Session()
        try:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    return await self._attempt(Transaction(self._mongod, session.next_transaction()), work)
                except CommandError as error:
                    if TRANSIENT not in error.labels or attempt == ATTEMPTS_MAX:
                        raise
                    logger.info("Running a transaction again", attempt=attempt, error=str(error))
            raise AssertionError("unreachable")
        finally:
            # Whatever became of the transaction, the next one of the session has a higher number, which ends it.
            self._idle_sessions.append(session)

    async def _attempt(self, transaction: Transaction, work: Callable[[Transaction], Awaitable[T]]) -> T:
        try:
            result = await work(transaction)
        except BaseException:
            if transaction.is_started:
                await transaction.abort()
            raise
        await transaction.commit()
        return result


class _Session:
    """A logical session of mongod, with the numbers of its transactions."""

    def __init__(self) -> None:
        self._lsid = {"id": Binary.from_uuid(uuid4())}
        self._number = 0

    def next_transaction(self) -> dict[str, Any]:
        self._number += 1
        return {"lsid": self._lsid, "txnNumber": Int64(self._number)}
