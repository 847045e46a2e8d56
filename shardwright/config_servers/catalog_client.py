"""Client of the config servers: catalog reads with a time limit, commands, and the cluster's feature version."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

from shardwright.sharding.catalog.reads import (
    CatalogRead,
    CatalogReads,
    Result,
    find_in_catalog,
    observe_command,
    observe_read,
    read_after,
    read_feature_version,
)
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.feature_version import INTERVAL_SECONDS
from shardwright.wire.cursor_batch import DocumentSink
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import Span
from shardwright.wire.read_preference import PRIMARY, PRIMARY_PREFERRED, ReadPreference
from shardwright.wire.transport.cursor import REPLY_SECONDS_MAX
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.replica_set import ReplicaSetClient

logger = get_logger("config_servers")

READ_SECONDS_MAX: Final = 30.0
"""mongos's default for config server reads (``defaultConfigCommandTimeoutMS``)."""

_SNAPSHOT_GONE: Final = frozenset({ErrorCode.SnapshotTooOld, ErrorCode.SnapshotUnavailable})

_PAUSE_SECONDS: Final = 0.01

PATIENCE_SECONDS: Final = 1.0
"""Wait of an operation for an optional answer.

Long enough for a read to reach another member after a frozen primary has not answered.
"""

Answer = TypeVar("Answer")

_RETRY_SECONDS: Final = 5.0
"""Pause after a failure while the version is unknown."""


class CatalogClient:
    """Client for the reads of `sharding.catalog.reads`, and for commands on the config servers' primary.

    No read is older than the config time of the clock, and replies advance the clock. So any member may answer a read.
    Only a read that depends on a change of unknown outcome needs the primary.

    Args:
        read_seconds_max: time limit for a read, including the config server's wait for the config time.

    Attributes:
        is_silent: an operation has waited in vain for the config servers, and no answer has arrived since.
    """

    def __init__(
        self,
        client: ReplicaSetClient,
        clock: VectorClock,
        read_seconds_max: float = READ_SECONDS_MAX,
        preference: ReadPreference = PRIMARY,
    ) -> None:
        self.client = client
        self.clock = clock
        self.is_silent = False
        self._read_seconds_max = read_seconds_max
        self._preference = preference

    async def read(
        self, reads: CatalogReads[Result], *, as_of: int = 0, preference: ReadPreference | None = None
    ) -> Result:
        """Run one of the reads of `sharding.catalog.reads`, which may have several steps.

        Args:
            as_of: the packed cluster time that the result must reflect at least.
            preference: replaces the usual preference.

        Raises:
            CommandError: HostUnreachable; NetworkInterfaceExceededTimeLimit, the config servers took too long; the
                config server's error; or raised by the read itself.
        """
        preference = preference or self._preference
        try:
            with trio.fail_after(self._read_seconds_max) as scope:
                step = next(reads)
                while True:
                    step = reads.send(await self._collect(step, as_of, preference, scope))
        except StopIteration as finished:
            result: Result = finished.value
            return result
        except trio.TooSlowError:
            raise _too_slow() from None

    async def find(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> list[bytes]:
        """Return the raw documents in a collection of the config database that match a query; errors as `read`."""
        return await self.read(find_in_catalog(collection, query, sort=sort))

    @may_run_in_reactor
    async def command(
        self, command: Mapping[str, Any], db: str = "admin", *, is_idempotent: bool = True
    ) -> dict[str, Any]:
        """Run a command on the config servers' primary.

        Raises:
            CommandError: HostUnreachable, or the config server's error.
        """
        gossip = {name: time for name, time in self.clock.gossip().items() if name not in command}
        with _as_command_errors():
            reply = await self.client.command(db, {**command, **gossip}, is_idempotent=is_idempotent)
        self.is_silent = False
        observe_command(self.clock, reply)
        return reply

    @may_run_in_reactor
    async def ask(self, question: Mapping[str, Any], db: str = "admin") -> dict[str, Any]:
        """Run a read command that supports only read concern local on any config server; errors as `read`."""
        await in_own_task()
        asked = read_after(
            CatalogRead(db, {**question, "readConcern": {"level": "local"}}),
            self.clock.time,
            int(self._read_seconds_max * 1000),
        )
        try:
            with trio.fail_after(self._read_seconds_max), _as_command_errors():
                reply = await self.client.command(
                    asked.db, asked.command, preference=PRIMARY_PREFERRED, is_idempotent=True
                )
        except trio.TooSlowError:
            raise _too_slow() from None
        self.is_silent = False
        observe_command(self.clock, reply)
        return reply

    async def attempt(self, work: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Run work that the caller repeats soon, and only log failures. Returns the result, if any."""
        try:
            return await work()
        except (CommandError, BackendError) as error:
            logger.warning("Could not reach the config servers", error=str(error))
            return None

    @may_run_in_reactor
    async def attempt_briefly(
        self,
        work: Callable[[], Awaitable[Answer]],
        patience_seconds: float | None = None,
        *,
        even_if_silent: bool = False,
    ) -> Answer | None:
        """Run optional work for an operation; returns None after a failure or a long wait.

        The work begins or joins a read that continues when the wait for it ends. While the config servers are silent,
        operations do not wait at all, unless they need the newest state (``even_if_silent``).
        """
        await in_own_task()
        is_hopeless = self.is_silent and not even_if_silent
        with trio.move_on_after(0 if is_hopeless else patience_seconds or PATIENCE_SECONDS):
            return await self.attempt(work)
        if not self.is_silent:
            logger.warning("The config servers do not answer in time, operations continue without them")
        self.is_silent = True
        return None

    async def _collect(
        self, read: CatalogRead, as_of: int, preference: ReadPreference, scope: trio.CancelScope
    ) -> DocumentSink:
        """Run one step, and repeat it if mongod has discarded its snapshot: the read is of the present, so any will do.

        The time limit of a long read starts again with each batch, up to `REPLY_SECONDS_MAX` in all. Its ``maxTimeMS``
        cannot, because mongod counts all batches.
        """
        seconds_max = REPLY_SECONDS_MAX if read.may_be_long else self._read_seconds_max
        latest = trio.current_time() + seconds_max
        asked = read_after(read, self.clock.time, int(seconds_max * 1000), as_of=as_of)

        def on_reply(body: bytes, fields: Mapping[bytes, Span]) -> None:
            observe_read(self.clock, body, fields)
            if read.may_be_long:
                scope.deadline = min(trio.current_time() + self._read_seconds_max, latest)

        while True:
            try:
                with _as_command_errors():
                    found = await self.client.read_into(
                        asked.new_sink, asked.db, asked.command, preference=preference, on_reply=on_reply
                    )
                self.is_silent = False
                return found
            except CommandError as error:
                if error.code not in _SNAPSHOT_GONE:
                    raise
            await trio.sleep(_PAUSE_SECONDS)


@contextmanager
def _as_command_errors() -> Iterator[None]:
    """Turn failures to reach the config servers into errors that can be sent to clients."""
    try:
        yield
    except BackendError as error:
        raise _unreachable(error) from error
    except CommandError as error:
        if error.code == ErrorCode.MaxTimeMSExpired:
            raise _too_slow() from error
        raise


def _too_slow() -> CommandError:
    return CommandError(ErrorCode.NetworkInterfaceExceededTimeLimit, "the config servers did not answer in time")


def _unreachable(error: BackendError) -> CommandError:
    return CommandError(ErrorCode.HostUnreachable, f"the config servers are not reachable: {error}")


async def follow_feature_version(catalog: CatalogClient, adopt: Callable[[int], None]) -> None:
    """Read the version at each interval until cancelled, and call ``adopt``, which may raise to end the daemon."""
    is_known = False
    while True:
        version = await catalog.attempt(lambda: catalog.read(read_feature_version()))
        if version is not None:
            is_known = True
            adopt(version)
        await trio.sleep(INTERVAL_SECONDS if is_known else _RETRY_SECONDS)
