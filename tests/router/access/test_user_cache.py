"""The lifetime of a cached user description, and its use while the config servers do not answer."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio
import trio.testing

from shardwright.config_servers.catalog_client import PATIENCE_SECONDS
from shardwright.router.access.user_cache import UserCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.router.access.test_log_in_work import ANN, KEYS, FakeCatalog, user_cache

INTERVAL: Final = 30.0
UNREACHABLE: Final = CommandError(ErrorCode.HostUnreachable, "the config servers are not reachable")


def run(body: Callable[[FakeCatalog, UserCache, trio.Nursery], Awaitable[None]]) -> None:
    """Run a test with config servers, a cache, and a nursery that ends with it; the time jumps."""

    async def main() -> None:
        catalog = FakeCatalog()
        async with trio.open_nursery() as nursery:
            await body(catalog, user_cache(catalog, nursery, INTERVAL), nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_description_is_good_for_a_moment() -> None:
    async def read(_: FakeCatalog, users: UserCache, __: trio.Nursery) -> None:
        user = await users.read(ANN)
        assert user is not None
        assert user.good_until == 0.0
        assert users.fresh(ANN) is user
        assert user.good_until > 0.0

    run(read)


def test_it_is_read_again_after_a_change_made_here() -> None:
    async def change(catalog: FakeCatalog, users: UserCache, _: trio.Nursery) -> None:
        user = await users.find(ANN)
        assert users.fresh(ANN) is user is not None
        users.forget()
        assert (user.good_until, users.fresh(ANN)) == (0.0, None)
        catalog.user_id = b"later"
        later = await users.find(ANN)
        assert later is not None
        assert later.user_id == b"later"
        catalog.user_id = None
        users.forget()
        assert await users.find(ANN) is None

    run(change)


def test_what_was_being_read_during_a_change_is_read_again() -> None:
    async def change(catalog: FakeCatalog, users: UserCache, nursery: trio.Nursery) -> None:
        catalog.answers = trio.Event()
        nursery.start_soon(users.find, ANN)
        await trio.testing.wait_all_tasks_blocked()
        users.forget()
        catalog.answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert users.fresh(ANN) is None

    run(change)


def test_it_is_not_good_any_more_when_there_is_a_newer_one() -> None:
    async def read_twice(_: FakeCatalog, users: UserCache, __: trio.Nursery) -> None:
        user = await users.find(ANN)
        assert users.fresh(ANN) is user is not None
        newer = await users.read(ANN)
        assert users.fresh(ANN) is newer is not user
        assert user.good_until == 0.0

    run(read_twice)


def test_a_change_made_elsewhere_counts_within_the_interval_without_a_wait() -> None:
    async def change(catalog: FakeCatalog, users: UserCache, nursery: trio.Nursery) -> None:
        nursery.start_soon(users.run)
        await users.find(ANN)
        assert users.fresh(ANN) is not None  # it is in use
        catalog.user_id = b"later"
        await trio.sleep(INTERVAL)
        later = users.fresh(ANN)
        assert later is not None
        assert later.user_id == b"later"
        catalog.user_id = None
        await trio.sleep(INTERVAL)
        assert users.fresh(ANN) is None

    run(change)


def test_a_change_made_elsewhere_counts_for_a_user_who_was_idle() -> None:
    async def change(catalog: FakeCatalog, users: UserCache, nursery: trio.Nursery) -> None:
        nursery.start_soon(users.run)
        await users.find(ANN)
        await trio.sleep(1)
        asked = len(catalog.commands)
        catalog.user_id = b"later"
        await trio.sleep(10 * INTERVAL)
        assert len(catalog.commands) == asked  # what is not used is not read
        assert users.fresh(ANN) is None
        later = await users.find(ANN)
        assert later is not None
        assert later.user_id == b"later"

    run(change)


def test_an_old_description_is_used_while_the_config_servers_are_silent_and_read_when_they_answer() -> None:
    async def silence(catalog: FakeCatalog, users: UserCache, nursery: trio.Nursery) -> None:
        nursery.start_soon(users.run)
        user = await users.find(ANN)
        assert users.fresh(ANN) is user is not None
        catalog.answers = trio.Event()
        await trio.sleep(10 * INTERVAL)
        asked, began = len(catalog.commands), trio.current_time()
        assert await users.find(ANN) is user
        assert trio.current_time() - began <= 2
        waited_until = trio.current_time()
        users.forget()
        assert await users.find(ANN) is user
        assert await users.read(ANN) is user
        assert trio.current_time() == waited_until  # only the first operation has waited
        account = await users.account_of(ANN)
        assert trio.current_time() == waited_until + PATIENCE_SECONDS  # and each log-in
        assert [each.server_key for each in next(iter(account.credentials.values()))] == [KEYS.server]
        assert len(catalog.commands) <= asked + 2  # of the many operations, and they wait for the same answer
        catalog.user_id = b"later"
        catalog.answers.set()
        await trio.sleep(1)
        later = await users.find(ANN)
        assert later is not None
        assert later.user_id == b"later"

    run(silence)


def test_a_user_of_whom_nothing_is_known_waits_for_the_config_servers() -> None:
    async def silence(catalog: FakeCatalog, users: UserCache, _: trio.Nursery) -> None:
        catalog.answers = trio.Event()
        with trio.move_on_after(INTERVAL) as wait:
            await users.account_of(ANN)
        assert wait.cancelled_caught

    run(silence)


def test_users_can_log_in_if_they_are_known_or_can_be_read() -> None:
    async def log_in(catalog: FakeCatalog, users: UserCache, nursery: trio.Nursery) -> None:
        catalog.failure = UNREACHABLE
        nursery.start_soon(users.run)
        await trio.sleep(INTERVAL)
        assert not users.may_log_in
        catalog.failure = None
        await trio.sleep(INTERVAL)
        assert users.may_log_in  # though no user is known
        catalog.failure = UNREACHABLE
        await trio.sleep(INTERVAL)
        assert not users.may_log_in
        catalog.failure = None
        await users.read(ANN)
        catalog.failure = UNREACHABLE
        await trio.sleep(INTERVAL)
        assert users.may_log_in

    run(log_in)


def test_a_user_that_cannot_be_decoded_does_not_keep_others_from_being_read() -> None:
    async def read(catalog: FakeCatalog, users: UserCache, nursery: trio.Nursery) -> None:
        nursery.start_soon(users.run)
        await users.find(ANN)
        catalog.restrictions = [None]  # type: ignore[list-item]
        await trio.sleep(INTERVAL)
        catalog.restrictions = []
        await trio.sleep(INTERVAL)
        assert await users.find(ANN) is not None

    run(read)
