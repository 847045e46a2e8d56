"""Elections that a mongod starts because the daemon of its primary does not answer."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from shardwright.daemon.sidecar.hello import SILENT_PRIMARY, HelloMirror
from shardwright.daemon.sidecar.primary_watch import PrimaryWatch
from shardwright.wire.errors import BackendError
from shardwright.wire.transport.transport import Timeouts

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import LocalMongod
    from shardwright.wire.transport.pool import ConnectionPools

TIMEOUTS: Final = Timeouts()
OBSERVED_SECONDS: Final = 120.0
SIDECARS: Final = {f"m{number}:1": f"d{number}:1" for number in range(3)}
PRIMARY: Final = "m0:1"

Answer = Callable[[], Awaitable[dict[str, Any]]]


class FakePool:
    """A daemon that answers each hello in some way."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def command(self, db: str, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a hello."""
        assert (db, command) == ("admin", {"hello": 1})
        return await self._answer()


class FakeMongod:
    """The mongod of the daemon that watches; records when it stood for election."""

    address = "m1:1"

    def __init__(self) -> None:
        self.elections: list[float] = []

    async def command(self, db: str, command: dict[str, Any]) -> dict[str, Any]:
        """Record an election."""
        assert (db, command) == ("admin", {"replSetStepUp": 1})
        await trio.lowlevel.checkpoint()
        self.elections.append(trio.current_time())
        return {"ok": 1}


def elections(of_primary: Answer) -> list[float]:
    """After how many seconds the mongod stands for election; the other secondary's daemon misses the primary's too."""

    async def misses_primary() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {SILENT_PRIMARY: PRIMARY}

    async def main() -> list[float]:
        mongod = FakeMongod()
        mirror = HelloMirror(mongod.address, SIDECARS[mongod.address])
        mirror.learn_sidecars(SIDECARS)
        version = {"processId": ObjectId(), "counter": 1}
        mirror.meet({"topologyVersion": version, "hosts": list(SIDECARS), "me": mongod.address, "primary": PRIMARY})
        pools = {"d0:1": FakePool(of_primary), "d2:1": FakePool(misses_primary)}
        watch = PrimaryWatch(cast("LocalMongod", mongod), mirror, cast("ConnectionPools", pools), TIMEOUTS)
        began = trio.current_time()
        with trio.move_on_after(OBSERVED_SECONDS):
            await watch.run()
        return [each - began for each in mongod.elections]

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seconds", [0.1, 2.5, 7.5])
def test_a_slow_daemon_is_not_away(seconds: float) -> None:
    async def slow() -> dict[str, Any]:
        await trio.sleep(seconds)
        return {"ok": 1}

    assert elections(slow) == []


def test_a_silent_daemon_is_missed_as_soon_as_a_silent_mongod_would_be() -> None:
    first = elections(trio.sleep_forever)[0]
    assert TIMEOUTS.hello_seconds <= first <= TIMEOUTS.hello_seconds + 5.0


def test_a_daemon_that_refuses_connections_is_missed_after_the_same_time() -> None:
    async def refuse() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        raise BackendError("d0:1", "connection refused", sent=False)

    first = elections(refuse)[0]
    assert TIMEOUTS.hello_seconds <= first <= TIMEOUTS.hello_seconds + 5.0


def test_one_unanswered_hello_proves_nothing() -> None:
    hellos = 0

    async def alternate() -> dict[str, Any]:
        nonlocal hellos
        hellos += 1
        if hellos % 2:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return {"ok": 1}

    assert elections(alternate) == []
    assert hellos > 2
