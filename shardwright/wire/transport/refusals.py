"""Logging of refused connections: at most one line per second, with their number.

Otherwise a burst of thousands would fill the log just when somebody needs to read it.
"""

from typing import Final

import trio

from shardwright.wire.logger import get_logger

logger = get_logger("wire.server")

_INTERVAL_SECONDS: Final = 1.0


class RefusalLog:
    """Counts refused connections and logs them while `run` is running.

    Attributes:
        refused: their total number.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._logged = 0
        self._latest: tuple[str, int] = ("", 0)
        self._noted = trio.Event()

    def note(self, peer: str, open_connections: int) -> None:
        """Count a refused connection.

        Args:
            peer: ``ip:port`` of the client.
            open_connections: the number of open connections, which is the maximum.
        """
        self.refused += 1
        self._latest = (peer, open_connections)
        self._noted.set()

    async def run(self) -> None:
        """Log until cancelled."""
        while True:
            await self._noted.wait()
            self._noted = trio.Event()
            self._log()
            await trio.sleep(_INTERVAL_SECONDS)

    def _log(self) -> None:
        peer, open_connections = self._latest
        logger.warning(
            "Connections refused because there are too many open connections",
            refused_count=self.refused - self._logged,
            remote=peer,
            connection_count=open_connections,
        )
        self._logged = self.refused
