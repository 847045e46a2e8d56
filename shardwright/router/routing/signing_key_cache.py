"""The keys that sign cluster times, read from the config servers and kept in memory."""

from time import time
from typing import Final

import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.catalog.reads import read_signing_keys
from shardwright.sharding.cluster_time import TimeSigner, refresh_delay_seconds
from shardwright.wire.passages import EPOCH
from shardwright.wire.transport.reactor import may_run_in_reactor

_FLIGHT: Final = "keys"


class SigningKeyCache:
    """A cache that supplies the cluster's keys to a signer.

    Attributes:
        are_read: whether the config servers have answered yet.
    """

    def __init__(self, catalog: CatalogClient, signer: TimeSigner, nursery: trio.Nursery) -> None:
        self._catalog = catalog
        self._signer = signer
        self._reads: SingleFlight[str, None] = SingleFlight(nursery)
        self.are_read = False

    async def run(self) -> None:
        """Keep the keys current until cancelled."""
        while True:
            await self._catalog.attempt(self.refresh)
            await trio.sleep(refresh_delay_seconds(self._signer.keys, int(time())))

    @may_run_in_reactor
    async def refresh(self) -> None:
        """Read the keys now, once for concurrent callers; raises CommandError if the config servers do not answer."""
        await self._reads.run_after_now(_FLIGHT, self._read)

    async def _read(self) -> None:
        self._signer.keys = await self._catalog.read(read_signing_keys())
        if not self.are_read:
            self.are_read = True
            EPOCH.bump()
