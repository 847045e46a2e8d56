"""Reading the catalog on the config servers, with a time limit, and running commands there."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from shardwright.sharding.catalog.config_time import observe_command, observe_read, read_after
from shardwright.sharding.catalog.reads import CatalogRead, CatalogReads, Result, find_in_catalog
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.request_loop import may_run_in_reactor

logger = get_logger("config_servers")

READ_SECONDS_MAX: Final = 30.0
"""As mongos's default for config server reads (``defaultConfigCommandTimeoutMS``)."""

_SNAPSHOT_GONE: Final = frozenset({ErrorCode.SnapshotTooOld, ErrorCode.SnapshotUnavailable})

_PAUSE_SECONDS: Final = 0.01


class CatalogClient:
    """Runs the reads of `sharding.catalog.reads`, and commands on the config servers' primary.

    No read is older than the config time of the clock, and reads and commands advance it.

    Args:
        client: the client of the config servers.
        clock: the daemon's clock.
        read_seconds_max: time limit for a read, including the wait of a config server for that config time.
    """

    def __init__(
        self, client: ReplicaSetClient, clock: VectorClock, read_seconds_max: float = READ_SECONDS_MAX
    ) -> None:
        self.client = client
        self.clock = clock
        self._read_seconds_max = read_seconds_max

    async def read(self, reads: CatalogReads[Result], *, as_of: int = 0) -> Result:
        """Run one of the reads of `sharding.catalog.reads`, which may have several steps.

        Args:
            reads: the read.
            as_of: a packed cluster time that it must not be older than.

        Raises:
            CommandError: HostUnreachable; NetworkInterfaceExceededTimeLimit, the config servers took too long; the
                config server's error; or raised by the read itself.
        """
        try:
            with trio.fail_after(self._read_seconds_max):
                step = next(reads)
                while True:
                    step = reads.send(await self._find(step, as_of))
        except StopIteration as finished:
            result: Result = finished.value
            return result
        except trio.TooSlowError:
            raise _too_slow() from None

    async def find(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> list[bytes]:
        """The raw documents of a collection of the config database that match a query.

        Raises:
            CommandError: as `read`.
        """
        return await self.read(find_in_catalog(collection, query, sort=sort))

    @may_run_in_reactor
    async def command(
        self, command: Mapping[str, Any], db: str = "admin", *, is_idempotent: bool = True
    ) -> dict[str, Any]:
        """Run a command on the config servers' primary.

        Raises:
            CommandError: HostUnreachable, or the config server's error.
        """
        try:
            gossip = {name: time for name, time in self.clock.gossip().items() if name not in command}
            reply = await self.client.command(db, {**command, **gossip}, is_idempotent=is_idempotent)
        except BackendError as error:
            raise _unreachable(error) from error
        observe_command(self.clock, reply)
        return reply

    async def attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something that is repeated soon in any case; a failure is logged."""
        try:
            await work()
        except (CommandError, BackendError) as error:
            logger.warning("Could not reach the config servers", error=str(error))

    async def _find(self, read: CatalogRead, as_of: int) -> list[bytes]:
        """Run one step. It reads the present, so if mongod has forgotten the snapshot it chose, another will do."""
        bounded = read_after(read, self.clock.time, int(self._read_seconds_max * 1000), as_of=as_of)
        while True:
            try:
                return await self.client.find_raw(*bounded, on_reply=partial(observe_read, self.clock))
            except CommandError as error:
                if error.code == ErrorCode.MaxTimeMSExpired:
                    raise _too_slow() from error
                if error.code not in _SNAPSHOT_GONE:
                    raise
            except BackendError as error:
                raise _unreachable(error) from error
            await trio.sleep(_PAUSE_SECONDS)


def _too_slow() -> CommandError:
    return CommandError(ErrorCode.NetworkInterfaceExceededTimeLimit, "the config servers did not answer in time")


def _unreachable(error: BackendError) -> CommandError:
    return CommandError(ErrorCode.HostUnreachable, f"the config servers are not reachable: {error}")
