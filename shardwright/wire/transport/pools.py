"""One connection pool for each remote host of a daemon, and the task that maintains them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import trio

from shardwright.wire.errors import BackendError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.disconnects import DisconnectWatcher
from shardwright.wire.transport.pool import AbandonedRequests, Pool, PoolOptions, PoolStatistics

logger = get_logger("wire.pools")

_REAP_INTERVAL_SECONDS: Final = 10.0


class ConnectionPools:
    """The pools of a daemon by address. `run` must be running while they are used.

    ``followers`` are pools to the same hosts with another handshake; `break_off` and `resume` apply to them too.
    """

    def __init__(
        self,
        handshake: Callable[[], Mapping[str, Any]],
        options: PoolOptions | None = None,
        followers: Sequence["ConnectionPools"] = (),
    ) -> None:
        self._handshake = handshake
        self._options = options or PoolOptions()
        self._watcher = DisconnectWatcher()
        self._abandoned = AbandonedRequests()
        self._pools: dict[str, Pool] = {}
        self._followers = followers

    def __getitem__(self, address: str) -> Pool:
        """Return the pool of a host, created on first use."""
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(address, self._handshake, self._watcher, self._abandoned, self._options)
        return pool

    def statistics(self) -> dict[str, PoolStatistics]:
        """Return the current numbers by address."""
        return {address: pool.statistics() for address, pool in self._pools.items()}

    def in_use(self, address: str) -> int:
        """Return the number of borrowed connections to a host, which equals its operations in progress."""
        pool = self._pools.get(address)
        return 0 if pool is None else pool.in_use

    def close_idle(self, address: str) -> None:
        """Close the idle connections to a host that has restarted or is gone."""
        for pool in self._open_pools(address):
            pool.close_idle()

    def break_off(self, address: str, reason: str) -> None:
        """Fail all requests to a host until `resume`, see `Pool.break_off`."""
        for pools in (self, *self._followers):
            pools[address].break_off(reason)

    def resume(self, address: str) -> None:
        """Send requests to a host again, because it has answered or is not monitored any more."""
        for pool in self._open_pools(address):
            pool.resume()

    async def run(self) -> None:
        """Handle disconnects and abandoned requests, reap idle connections; on cancellation, close the pools."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watcher.run)
                nursery.start_soon(self._abandoned.run)
                while True:
                    await trio.sleep(_REAP_INTERVAL_SECONDS)
                    self._reap(trio.current_time())
                    for pool in self._pools.values():
                        nursery.start_soon(_fill, pool)
        finally:
            for pool in self._pools.values():
                pool.close()

    def _open_pools(self, address: str) -> Iterator[Pool]:
        for pools in (self, *self._followers):
            pool = pools._pools.get(address)
            if pool is not None:
                yield pool

    def _reap(self, now: float) -> None:
        for address, pool in list(self._pools.items()):
            pool.reap(now)
            numbers = pool.statistics()
            unused_seconds = now - pool.last_used
            is_needed = numbers.in_use or numbers.waiting or pool.has_readers
            if not is_needed and unused_seconds > self._options.idle_seconds_max:
                pool.close()
                del self._pools[address]


async def _fill(pool: Pool) -> None:
    try:
        await pool.fill()
    except (BackendError, RemoteProtocolError) as error:
        # The host is down: operations that need it get the error, and a later round fills the pool.
        logger.debug("Could not fill a pool", remote=pool.address, error=str(error))
