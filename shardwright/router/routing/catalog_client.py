"""Reading the catalog on the config servers."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import Any, TypeVar

import trio

from shardwright.sharding.catalog.config_time import observe_command, observe_read, read_after
from shardwright.sharding.catalog.reads import CatalogRead
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.replica_set import ReplicaSetClient
from shardwright.wire.transport.request_loop import may_run_in_reactor

logger = get_logger("router.catalog")

T = TypeVar("T")

READ_SECONDS_MAX = 30.0
"""As mongos's default for config server reads (``defaultConfigCommandTimeoutMS``)."""


class CatalogClient:
    """Runs the reads that `sharding.catalog.reads` describes, and commands on the config servers' primary.

    No read is older than the config time that the clock knows, and each advances it.
    """

    def __init__(
        self, client: ReplicaSetClient, clock: VectorClock, read_seconds_max: float = READ_SECONDS_MAX
    ) -> None:
        self.client = client
        self.clock = clock
        self._read_seconds_max = read_seconds_max

    async def read(self, steps: Generator[CatalogRead, list[bytes], T]) -> T:
        """Run a read from its first step to its result.

        Raises:
            CommandError: the config servers refused, or did not answer in time.
        """
        try:
            with trio.fail_after(self._read_seconds_max):
                step = next(steps)
                while True:
                    step = steps.send(await self._find(step))
        except StopIteration as finished:
            result: T = finished.value
            return result
        except trio.TooSlowError:
            raise _too_slow() from None
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"the config servers are not reachable: {error}") from error

    async def _find(self, read: CatalogRead) -> list[bytes]:
        bounded = read_after(read, self.clock.time.config_time, int(self._read_seconds_max * 1000))
        try:
            return await self.client.find_raw(*bounded, on_reply=partial(observe_read, self.clock))
        except CommandError as error:
            if error.code != ErrorCode.MaxTimeMSExpired:
                raise
            raise _too_slow() from error

    @may_run_in_reactor
    async def command(self, command: Mapping[str, Any], *, is_idempotent: bool = True) -> dict[str, Any]:
        """Run a command on the admin database of the config servers' primary.

        Raises:
            CommandError: it failed, or the config servers are not reachable.
        """
        try:
            reply = await self.client.command("admin", command, is_idempotent=is_idempotent)
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"the config servers are not reachable: {error}") from error
        observe_command(self.clock, reply)
        return reply

    async def attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that is done again soon anyway; a failure is logged."""
        try:
            await work()
        except (CommandError, BackendError) as error:
            logger.warning("Could not reach the config servers", error=str(error))


def _too_slow() -> CommandError:
    return CommandError(ErrorCode.NetworkInterfaceExceededTimeLimit, "the config servers did not answer in time")
