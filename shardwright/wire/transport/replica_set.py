"""Commands to a replica set as a whole: selects a suitable member, and another one after a change."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import bson
import trio

from shardwright.wire.cursor_batch import DocumentSink
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import Span
from shardwright.wire.read_preference import PRIMARY, PRIMARY_PREFERRED, ReadPreference
from shardwright.wire.transport.client import Connection, decode_reply
from shardwright.wire.transport.cursor import RawCursor
from shardwright.wire.transport.monitor import ReplicaSetMonitor
from shardwright.wire.transport.pool import Asked, ConnectionPools
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

Result = TypeVar("Result")
Sink = TypeVar("Sink", bound=DocumentSink)

_BATCH_DOCUMENTS_MAX: Final = 5_000
"""Most documents of a cursor that are processed at once, because other tasks wait meanwhile."""

_ATTEMPTS_MAX: Final = 4

_PATIENCE_SECONDS: Final = 0.5
"""Delay after which a read with `PRIMARY_PREFERRED` also goes to the other members.

A frozen primary counts as a member for `Timeouts.hello_seconds`.
"""


class ReplicaSetClient:
    """Runner of commands on the members of one replica set, with the pools and the monitor of a daemon."""

    def __init__(self, monitor: ReplicaSetMonitor, pools: ConnectionPools) -> None:
        self.monitor = monitor
        self._pools = pools
        self._timeouts = pools.transport.timeouts

    @property
    def set_name(self) -> str:
        """The name of the replica set."""
        return self.monitor.set_name

    @may_run_in_reactor
    async def select(self, preference: ReadPreference = PRIMARY) -> str:
        """Select a member for the preference, within `Timeouts.selection_seconds`.

        Raises FailedToSatisfyReadPreference if there was none within that time.
        """
        address = self.monitor.select(preference)
        if address is not None:
            return address
        await in_own_task()
        with trio.move_on_after(self._timeouts.selection_seconds):
            return await self.monitor.wait_for_member(preference)
        raise CommandError(
            ErrorCode.FailedToSatisfyReadPreference,
            f'Could not find host matching read preference {{ mode: "{preference.mode}" }} for set {self.set_name}',
        )

    @may_run_in_reactor
    async def exchange(self, frame: bytes, preference: ReadPreference = PRIMARY) -> tuple[str, bytes]:
        """Send a request to one suitable member, without retrying; return its address and the reply's frame.

        A failed connection makes the monitor check the member; the caller decides whether to retry. Raises as `select`,
        and BackendError if the member did not answer.
        """
        address = await self.select(preference)
        return address, await self.exchange_with(address, frame)

    @may_run_in_reactor
    async def exchange_with(self, address: str, frame: bytes) -> bytes:
        """Send a request to a given member, as `exchange`."""
        try:
            return await self._pools[address].exchange(frame)
        except BackendError as error:
            self.on_failure(address, error)
            raise

    def has_spare_connections(self, address: str) -> bool:
        """Whether a connection to a given member may be held for a reply that is not needed yet."""
        return self._pools[address].has_spare_connections

    @may_run_in_reactor
    async def ask(self, address: str, frame: bytes) -> Asked:
        """Send a request to a given member; the caller reads the reply later and reports errors to `on_failure`."""
        try:
            return await self._pools[address].ask(frame)
        except BackendError as error:
            self.on_failure(address, error)
            raise

    async def borrow(self, address: str) -> Connection:
        """Borrow a connection to a given member for exclusive use; it must be returned with `give_back`."""
        try:
            return await self._pools[address].borrow()
        except BackendError as error:
            self.on_failure(address, error)
            raise

    def give_back(self, address: str, connection: Connection) -> None:
        """Return a connection to a member, see `Pool.give_back`."""
        self._pools[address].give_back(connection)

    def on_failure(self, address: str, error: BackendError | CommandError | RemoteProtocolError) -> None:
        """Report the failure of an operation, which may imply that a member's state has changed.

        It implies nothing if another host was silent, from which the member was reading for the operation.
        """
        if not isinstance(error, BackendError) or error.address == address:
            self.monitor.on_error(address, error)

    @may_run_in_reactor
    async def command(
        self,
        db: str,
        command: Mapping[str, Any],
        *,
        preference: ReadPreference = PRIMARY,
        is_idempotent: bool = True,
    ) -> dict[str, Any]:
        """Run a command given as a dict; return the decoded reply.

        After a not-primary error, or if no connection could be opened, the command is retried on the new primary, with
        at most `_ATTEMPTS_MAX` attempts in total. An idempotent command is also retried after a broken connection, and
        when another member becomes primary before the present one answers, which may be frozen. With
        `PRIMARY_PREFERRED` the command also goes to the other members if the primary fails or takes long; the first
        answer counts.

        Raises:
            CommandError: the reply says ``ok: 0``, or no member was suitable in time.
            BackendError: the last attempt failed with a broken connection, or no member that received the command
                answered while it was primary (with `PRIMARY_PREFERRED`: while it was a member).
        """
        body = bson.encode({**command, **_told(preference), "$db": db})

        async def run(address: str) -> dict[str, Any]:
            reply = decode_reply(await self.exchange_with(address, op_msg(body, request_id=next_request_id())))
            if not reply.get("ok"):
                raise CommandError.from_reply(reply)
            return reply

        return await self._repeated(run, preference, is_idempotent=is_idempotent)

    async def find_raw(
        self,
        db: str,
        command: Mapping[str, Any],
        *,
        preference: ReadPreference = PRIMARY,
        on_reply: Callable[[bytes, Mapping[bytes, Span]], None] | None = None,
    ) -> list[bytes]:
        """Read all documents of the cursor that ``command`` (find or aggregate) opens, as raw bytes.

        Reading starts again in the cases in which `command` retries.

        Args:
            on_reply: called with the frame of each successful reply, and the spans of its body's fields in the frame.

        Raises:
            CommandError: the command or a ``getMore`` failed, or no member was suitable in time.
            BackendError: the last attempt failed with a broken connection.
        """
        return await self.read_into(list[bytes], db, command, preference=preference, on_reply=on_reply)

    async def read_into(
        self,
        new_sink: Callable[[], Sink],
        db: str,
        command: Mapping[str, Any],
        *,
        preference: ReadPreference = PRIMARY,
        on_reply: Callable[[bytes, Mapping[bytes, Span]], None] | None = None,
    ) -> Sink:
        """Read a cursor like `find_raw` into a sink that takes the documents as they arrive; return the sink.

        ``new_sink`` creates the sink; it is called again when reading starts again.
        """
        asked = {**command, **_told(preference)}

        async def read(address: str) -> Sink:
            sink = new_sink()
            async with RawCursor(partial(self.exchange_with, address), db, asked) as cursor:
                batch = await cursor.next_batch()
                while True:
                    if on_reply is not None:
                        on_reply(batch.frame, batch.fields)
                    if cursor.is_exhausted:
                        sink.extend(batch.documents())
                        return sink
                    # The member prepares the next batch while this one is processed.
                    following = await self.ask(address, cursor.next_request(batchSize=_BATCH_DOCUMENTS_MAX))
                    try:
                        sink.extend(batch.documents())
                    except BaseException:
                        following.give_up()
                        raise
                    batch = cursor.take(await self._answer(address, following))

        return await self._repeated(read, preference, is_idempotent=True)

    async def _answer(self, address: str, asked: Asked) -> bytes:
        try:
            reply = await asked.receive_answer(None)
        except BackendError as error:
            self.on_failure(address, error)
            raise
        assert reply is not None, "nothing relays it"
        return reply

    @may_run_in_reactor
    async def _repeated(
        self, ask: Callable[[str], Awaitable[Result]], preference: ReadPreference, *, is_idempotent: bool
    ) -> Result:
        """Run ``ask`` for a suitable member, with retries as described in `command`."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            address = await self.select(preference)
            try:
                if is_idempotent and preference is PRIMARY:
                    return await self._while_primary(address, ask)
                if is_idempotent and preference is PRIMARY_PREFERRED:
                    return await self._first_answer(address, ask)
                return await ask(address)
            except BackendError as error:
                if attempt == _ATTEMPTS_MAX or (error.sent and not is_idempotent):
                    raise
            except CommandError as failure:
                if not has_category(failure.code, Category.NOT_PRIMARY):
                    raise
                if preference is not PRIMARY_PREFERRED:  # else `_first_answer` has reported the member that refused
                    self.on_failure(address, failure)
                if attempt == _ATTEMPTS_MAX:
                    raise
        raise AssertionError("unreachable")

    @may_run_in_reactor
    async def _while_primary(self, address: str, ask: Callable[[str], Awaitable[Result]]) -> Result:
        """Run ``ask``; raise a BackendError when another member becomes primary first."""
        await in_own_task()
        return await answered_before(address, partial(ask, address), partial(self.monitor.wait_replaced, address))

    @may_run_in_reactor
    async def _first_answer(self, preferred: str, ask: Callable[[str], Awaitable[Result]]) -> Result:
        """Run ``ask`` for the preferred member, after some time also for the others; return the first result.

        Raises:
            CommandError: a member refuses for a reason that applies to all; or all have failed.
            BackendError: all members tried have failed, or are not members any more.
        """
        await in_own_task()
        results: list[Result] = []
        failures: dict[str, Exception] = {}
        asked: set[str] = set()
        has_failed = trio.Event()

        async def ask_one(address: str) -> None:
            try:
                results.append(await ask(address))
            except Exception as failure:
                failures[address] = failure
                if isinstance(failure, CommandError) and not self._is_of_member(address, failure):
                    nursery.cancel_scope.cancel()
                has_failed.set()
            else:
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            asked.add(preferred)
            nursery.start_soon(ask_one, preferred)
            with trio.move_on_after(_PATIENCE_SECONDS):
                await has_failed.wait()
            while True:
                changed = self.monitor.next_change
                members = set(self.monitor.readable())
                for address in members - asked:
                    asked.add(address)
                    nursery.start_soon(ask_one, address)
                if not members & (asked - failures.keys()):
                    break
                has_failed = trio.Event()
                await _first_of(changed, has_failed)
            nursery.cancel_scope.cancel()
        if results:
            return results[0]
        for failure in sorted(failures.values(), key=lambda each: isinstance(each, BackendError)):
            raise failure
        raise BackendError(preferred, "did not answer as long as it was a member", sent=True)

    def _is_of_member(self, address: str, refusal: CommandError) -> bool:
        """Whether another member may answer: this one refuses because it lags or is not readable any more."""
        if has_category(refusal.code, Category.NOT_PRIMARY):
            self.on_failure(address, refusal)
        return refusal.code == ErrorCode.MaxTimeMSExpired or has_category(refusal.code, Category.RETRYABLE)


def _told(preference: ReadPreference) -> dict[str, Any]:
    """Return the field without which a secondary refuses a read."""
    return {} if preference is PRIMARY else {"$readPreference": {"mode": preference.mode}}


async def _first_of(*events: trio.Event) -> None:
    """Wait for one of several events."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)


async def answered_before(
    address: str, ask: Callable[[], Awaitable[Result]], wait_replaced: Callable[[], Awaitable[None]]
) -> Result:
    """Run ``ask``, a request to the primary; raise BackendError if ``wait_replaced`` returns first."""
    results: list[Result] = []
    failures: list[Exception] = []

    async def wait_for_answer() -> None:
        try:
            results.append(await ask())
        except Exception as failure:
            failures.append(failure)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_answer)
        await wait_replaced()
        nursery.cancel_scope.cancel()
    for failure in failures:
        raise failure
    if not results:
        raise BackendError(address, "did not answer as long as it was primary", sent=True)
    return results[0]
