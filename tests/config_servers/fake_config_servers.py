"""Config servers that a test makes up."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.sharding.clock import VectorClock
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import DocumentSink
from shardwright.wire.read_preference import PRIMARY, ReadPreference

if TYPE_CHECKING:
    from shardwright.wire.transport.replica_set import ReplicaSetClient

READ_SECONDS_MAX = 5

Sink = TypeVar("Sink", bound=DocumentSink)


class FakeConfigServers:
    """Config servers that answer every read with nothing, as of a time.

    Attributes:
        time: the time.
        failure: the error to raise instead.
        is_silent: whether there is no answer at all.
        batch_seconds: duration of each batch of a read.
        commands: the received commands.
        preferences: their read preferences.
    """

    def __init__(self, time: Timestamp) -> None:
        self.time = time
        self.failure: Exception | None = None
        self.is_silent = False
        self.batch_seconds: tuple[float, ...] = (0,)
        self.commands: list[Mapping[str, Any]] = []
        self.preferences: list[ReadPreference] = []

    async def read_into(
        self,
        new_sink: Callable[[], Sink],
        _: str,
        command: Mapping[str, Any],
        *,
        preference: ReadPreference,
        on_reply: Callable[[bytes, Mapping[bytes, rawbson.Span]], None],
    ) -> Sink:
        self.preferences.append(preference)
        self.commands.append(command)
        await self._fail()
        body = bson.encode({"ok": 1.0, "operationTime": self.time})
        for seconds in self.batch_seconds:
            await trio.sleep(seconds)
            on_reply(body, rawbson.index(body))
        return new_sink()

    async def command(
        self, db: str, command: Mapping[str, Any], *, is_idempotent: bool, preference: ReadPreference = PRIMARY
    ) -> dict[str, Any]:
        self.preferences.append(preference)
        self.commands.append({**command, "$db": db, "isIdempotent": is_idempotent})
        await self._fail()
        return {"ok": 1.0, "$configTime": self.time}

    async def _fail(self) -> None:
        if self.is_silent:
            await trio.sleep_forever()
        if self.failure is not None:
            raise self.failure


def client_of(servers: FakeConfigServers, clock: VectorClock) -> CatalogClient:
    """A client of them, which waits for `READ_SECONDS_MAX`."""
    return CatalogClient(cast("ReplicaSetClient", servers), clock, READ_SECONDS_MAX)
