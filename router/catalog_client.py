"""Reading the catalog on the config servers."""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeVar

import trio

from sharding.catalog.reads import CatalogRead
from wire.error_codes import ErrorCode
from wire.errors import BackendError, CommandError
from wire.transport.replica_set import ReplicaSetClient

logger = logging.getLogger("router.catalog")

T = TypeVar("T")

READ_SECONDS_MAX = 30.0
"""As mongos's default for config server reads (``defaultConfigCommandTimeoutMS``)."""


class CatalogClient:
    """Runs the reads that `sharding.catalog.reads` describes, and commands on the config servers' primary."""

    def __init__(self, client: ReplicaSetClient, read_seconds_max: float = READ_SECONDS_MAX) -> None:
        self.client = client
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
                    step = steps.send(await self.client.find_raw(step.db, step.command))
        except StopIteration as finished:
            result: T = finished.value
            return result
        except trio.TooSlowError:
            raise CommandError(
                ErrorCode.NetworkInterfaceExceededTimeLimit, "the config servers did not answer in time"
            ) from None
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"the config servers are not reachable: {error}") from error

    async def command(self, command: Mapping[str, Any], *, is_idempotent: bool = True) -> dict[str, Any]:
        """Run a command on the admin database of the config servers' primary.

        Raises:
            CommandError: it failed, or the config servers are not reachable.
        """
        try:
            return await self.client.command("admin", command, is_idempotent=is_idempotent)
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"the config servers are not reachable: {error}") from error

    async def attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that is done again soon anyway; a failure is logged."""
        try:
            await work()
        except (CommandError, BackendError) as error:
            logger.warning("The config servers could not be used", extra={"error": str(error)})
