"""Pools of connections to other hosts: one for each host, and the task that maintains them.

Plain functions decide about a connection; only opening one and waiting for one are asynchronous. The connection
returned last is lent first, so that superfluous ones become idle and are closed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson
import trio

from shardwright.wire.errors import BackendError, CommandError, ConnectFailedError, RemoteProtocolError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client import Connection, decode_reply
from shardwright.wire.transport.disconnects import AbandonedRequests, DisconnectWatcher
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor
from shardwright.wire.transport.reply_memory import Relay
from shardwright.wire.transport.stream import FrameStream
from shardwright.wire.transport.transport import Transport

logger = get_logger("wire.pools")

_REAP_INTERVAL_SECONDS: Final = 10.0

IDLE_SECONDS_MAX: Final = 300.0
"""Default idle time of a connection, as mongod's ``ShardingTaskExecutorPoolHostTimeoutMS``."""


@dataclass(frozen=True)
class PoolOptions:
    """Limits of a pool.

    Attributes:
        connections_min: the number of connections kept even if idle.
        connections_max: the most connections open at once; further borrowers wait.
        asked_ahead_max: from this many connections in use on, none should be borrowed for a reply not needed yet.
        idle_seconds_max: the idle time after which connections above the minimum are closed.
    """

    connections_min: int = 1
    connections_max: int = 2_000
    asked_ahead_max: int = 500
    idle_seconds_max: float = IDLE_SECONDS_MAX


@dataclass(frozen=True)
class PoolStatistics:
    """A pool's current numbers of connections, and the total that it has created."""

    available: int
    in_use: int
    created: int
    waiting: int


class Pool:
    """A pool of connections to one host.

    Methods that need a connection raise ConnectFailedError if none could be opened, so that nothing was sent. After a
    ConnectionClosedError the request may have been executed.

    Args:
        watcher: detects idle connections that the peer has closed, so that they are not lent after a restart.
        abandoned: ends requests that were cancelled before their reply came.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        handshake: Callable[[], Mapping[str, Any]],
        watcher: DisconnectWatcher,
        abandoned: AbandonedRequests,
        options: PoolOptions = PoolOptions(),
    ) -> None:
        self.address = address
        self._reaped = self.last_used = trio.current_time()
        self._transport = transport
        self._handshake = handshake
        self._watcher = watcher
        self._abandoned = abandoned
        self._options = options
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._readers: set[Connection] = set()
        self._openings: set[trio.CancelScope] = set()
        self._open_count = 0
        self._silence = ""
        self._created = 0
        self._waiters = trio.lowlevel.ParkingLot()
        self._has_waited = False  # cheaper to check for each reply than the parking lot
        self._is_closed = False

    @may_run_in_reactor
    async def exchange(self, frame: bytes) -> bytes:
        """Send a request on a free connection and wait for its reply, as `Connection.exchange`."""
        connection = self._idle.pop() if self._idle else await self.borrow()
        try:
            return await connection.exchange(frame)
        finally:
            self.give_back(connection)

    def lend_quiet(self) -> Connection | None:
        """Lend an idle connection on which a request can be posted at once; None if there is none."""
        idle = self._idle
        return idle.pop() if idle and idle[-1].stream.is_quiet else None

    @property
    def has_spare_connections(self) -> bool:
        """Whether a connection may be held, perhaps for long, for a reply that is not needed yet."""
        return self._open_count - len(self._idle) < self._options.asked_ahead_max

    @may_run_in_reactor
    async def ask(self, frame: bytes) -> "Asked":
        """Send a request whose reply is read later."""
        connection = self._idle.pop() if self._idle else await self.borrow()
        is_asked = False
        try:
            await connection.ask(frame)
            is_asked = True
        finally:
            if not is_asked:
                self.give_back(connection)
        return Asked(self, connection, frame)

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command given as a dict and return its decoded reply; raise CommandError if it is ``ok: 0``."""
        frame = op_msg(bson.encode({**command, "$db": db}), request_id=next_request_id())
        reply = decode_reply(await self.exchange(frame))
        if not reply.get("ok"):
            raise CommandError.from_reply(reply)
        return reply

    @may_run_in_reactor
    async def send(self, frame: bytes) -> None:
        """Send a request that gets no reply."""
        connection = await self.borrow()
        try:
            await connection.send(frame)
        finally:
            self.give_back(connection)

    @may_run_in_reactor
    async def borrow(self) -> Connection:
        """Borrow a connection for exclusive use; it must be returned with `give_back`.

        A silent host (`break_off`) raises ConnectFailedError.
        """
        await in_own_task()
        while not self._idle and self._open_count >= self._options.connections_max and not self._silence:
            self._has_waited = True
            await self._waiters.park()
        if self._idle:
            return self._idle.pop()
        return await self._open()

    def give_back(self, connection: Connection) -> None:
        """Return a borrowed connection; a closed one is removed from the pool."""
        if connection.is_closed:
            self._forget(connection)
        elif self._is_closed or connection.broken_off:
            self._close(connection)
        else:
            # The time of the last reaping is accurate enough, and saves reading the clock for every request.
            connection.idle_since = self.last_used = self._reaped
            self._idle.append(connection)
            if self._has_waited and self._waiters:
                self._waiters.unpark()

    def reap(self, now: float) -> None:
        """Close connections above the minimum that have been idle for too long; must be called every few seconds."""
        self._reaped = now
        limit = now - self._options.idle_seconds_max
        expired = [connection for connection in self._idle if connection.idle_since < limit]
        surplus = max(0, self._open_count - self._options.connections_min)
        for connection in expired[:surplus]:
            self._idle.remove(connection)
            self._close(connection)

    async def fill(self) -> None:
        """Open connections up to the minimum, for example after a restart of the host; not a use of the pool."""
        last_used = self.last_used
        while self._open_count < self._options.connections_min and not self._is_closed:
            self.give_back(await self._open())
            self.last_used = last_used

    def end_request(self, stream: FrameStream) -> None:
        """End an abandoned request that was sent to this host on any connection, and close that connection."""
        self._abandoned.end(stream, self.command)

    def close(self) -> None:
        """Close the idle connections now, and the borrowed ones when they are returned."""
        self._is_closed = True
        while self._idle:
            self._close(self._idle.pop())

    def close_idle(self) -> None:
        """Close the idle connections, because the peer is gone."""
        while self._idle:
            self._close(self._idle.pop())

    def break_off(self, reason: str) -> None:
        """Fail all requests to a silent host: the ones in progress, and new ones until `resume`.

        Requests to other hosts that read from this one fail too (`add_reader`).
        """
        self._silence = reason
        self.close_idle()
        for scope in self._openings:
            scope.cancel()
        for connection in self._connections:
            connection.break_off(reason)
        for connection in self._readers:
            connection.break_off(reason, self.address)
        self._waiters.unpark_all()

    def resume(self) -> None:
        """Open connections again, because the host has answered."""
        self._silence = ""

    def add_reader(self, connection: Connection) -> None:
        """Register a request to another host that reads from this one, so that it fails while this one is silent.

        `remove_reader` has to follow.
        """
        self._readers.add(connection)
        if self._silence:
            connection.break_off(self._silence, self.address)

    def remove_reader(self, connection: Connection) -> None:
        """Remove a request that `add_reader` has registered, because it has ended."""
        self._readers.discard(connection)

    @property
    def has_readers(self) -> bool:
        """Whether requests to other hosts read from this one."""
        return bool(self._readers)

    @property
    def in_use(self) -> int:
        """Number of borrowed connections."""
        return self._open_count - len(self._idle)

    def statistics(self) -> PoolStatistics:
        """Return the current numbers."""
        return PoolStatistics(
            available=len(self._idle),
            in_use=self.in_use,
            created=self._created,
            waiting=len(self._waiters),
        )

    async def _open(self) -> Connection:
        self._open_count += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._open_count -= 1
            self._waiters.unpark()
            raise
        self._created += 1
        self._connections.add(connection)
        connection.take_abandoned = self.end_request
        self._watcher.watch(connection.socket, lambda: self._on_disconnect(connection))
        return connection

    async def _connect(self) -> Connection:
        if not self._silence:
            with trio.CancelScope() as scope:
                self._openings.add(scope)
                try:
                    connection = await Connection.open(self._transport, self.address, handshake=self._handshake())
                finally:
                    self._openings.discard(scope)
                if not self._silence:
                    return connection
                connection.close()
        raise ConnectFailedError(self.address, self._silence, sent=False, is_silent=True)

    def _on_disconnect(self, connection: Connection) -> None:
        """Close a connection if it is idle; a borrower may still read data that the peer sent before it closed."""
        if connection in self._idle:
            self._idle.remove(connection)
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._watcher.unwatch(connection.socket)
        connection.close()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._open_count -= 1
        self._waiters.unpark()


class Asked:
    """A request that was sent, and the connection for its reply. One of its methods must be called."""

    __slots__ = ("_connection", "_frame", "_pool", "_sources", "is_over")

    def __init__(self, pool: Pool, connection: Connection, frame: bytes) -> None:
        self._pool = pool
        self._connection = connection
        self._frame = frame
        self._sources: tuple[Pool, ...] = ()
        self.is_over = False

    def reads_from(self, sources: Iterable[Pool]) -> None:
        """Fail the request if one of these hosts becomes silent, because the peer reads from them for it."""
        self._sources = tuple(sources)
        for source in self._sources:
            source.add_reader(self._connection)

    @may_run_in_reactor
    async def receive_whole(self) -> bytes:
        """Receive the reply as a whole, as `Connection.exchange`."""
        reply = await self.receive_answer(None)
        assert reply is not None, "nothing has forwarded it"
        return reply

    @may_run_in_reactor
    async def receive_answer(self, relay: Relay | None) -> bytes | None:
        """Receive the reply, as `Connection.exchange_for`; None if it was long and ``relay`` has forwarded it."""
        self.is_over = True
        try:
            return await self._connection.receive_answer(self._frame, relay)
        finally:
            self._give_back()

    async def wait_begun(self) -> None:
        """Wait for the reply, as `Connection.wait_answer_begun`."""
        await self._connection.wait_answer_begun()

    def give_up(self) -> None:
        """Abandon the reply, see `Connection.abandon`."""
        self.is_over = True
        self._connection.abandon()
        self._give_back()

    def _give_back(self) -> None:
        for source in self._sources:
            source.remove_reader(self._connection)
        self._pool.give_back(self._connection)


class ConnectionPools:
    """The pools of a daemon by address. `run` must be running while they are used.

    ``followers`` are pools to the same hosts with another handshake; `break_off` and `resume` apply to them too.

    Attributes:
        transport: the transport of their connections.
    """

    def __init__(
        self,
        transport: Transport,
        handshake: Callable[[], Mapping[str, Any]],
        options: PoolOptions | None = None,
        followers: Sequence["ConnectionPools"] = (),
    ) -> None:
        self.transport = transport
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
            pool = self._pools[address] = Pool(
                self.transport, address, self._handshake, self._watcher, self._abandoned, self._options
            )
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
