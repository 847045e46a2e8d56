"""Cursors that clients opened through an earlier process of this daemon, which ended while mongod kept running.

That process knew what has to be hidden from them, and which further collections they read. This one does not, so it
ends them, as if mongod had been restarted: their clients get CursorNotFound.
"""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Final

import trio
from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.open_cursors import client_cursors
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_value
from shardwright.wire.request import Request

logger = get_logger("shardd.orphans")

WAIT_SECONDS_MAX: Final = 10.0
"""How long a ``getMore`` waits for these cursors to end."""


class FormerCursors:
    """The cursors on one mongod that are older than this process.

    Attributes:
        are_gone: whether all of them have ended.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self.are_gone = False
        self._mongod = mongod
        self._opened_until = datetime.now(UTC)
        self._gone = trio.Event()

    async def end(self) -> None:
        """End them as soon as mongod answers."""
        backoff = Backoff(first_seconds=0.1, seconds_max=1.0)
        while not self.are_gone:
            try:
                await self._end_all()
                # A batch that the earlier process had just begun to read hides its cursor from one listing. No batch
                # has begun since, so the next listing shows it.
                await self._end_all()
            except (BackendError, CommandError) as error:
                logger.debug("Could not end the cursors of an earlier process", error=str(error))
                await backoff.pause()
            else:
                self.are_gone = True
        self._gone.set()

    async def wait_gone(self, request: Request) -> None:
        """Return when all of them have ended, before a ``getMore`` is forwarded.

        Raises:
            CommandError: CursorNotFound, they could not be ended in time.
        """
        with trio.move_on_after(WAIT_SECONDS_MAX):
            await self._gone.wait()
            return
        cursor_id = decode_value(request.body, request.fields[b"getMore"])
        raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_id} not found")

    async def _end_all(self) -> None:
        found: defaultdict[str, list[Int64]] = defaultdict(list)
        for each in await client_cursors(self._mongod, opened_until=self._opened_until):
            found[each.namespace].append(Int64(each.id))
        for namespace, cursors in found.items():
            db, _, collection = namespace.partition(".")
            await self._mongod.command(db, {"killCursors": collection, "cursors": cursors})
            logger.info("Ended cursors of an earlier process", namespace=namespace, count=len(cursors))
