"""How long a description of a user is used without a question to the cache."""

from time import monotonic
from typing import Any, cast

import trio

from shardwright.router.access.anybody_seen import AnybodySeen
from shardwright.router.access.user_cache import UserCache
from tests.router.access.test_log_in_work import ANN, FakeCatalog


def cache(catalog: FakeCatalog, seconds_max: float) -> UserCache:
    return UserCache(cast("Any", catalog), lambda: seconds_max, AnybodySeen())


def test_a_description_is_good_for_a_moment() -> None:
    users = cache(FakeCatalog(), 30.0)
    user = trio.run(users.read, ANN)
    assert user is not None
    assert user.good_until == 0.0
    assert users.fresh(ANN) is user
    assert monotonic() < user.good_until <= monotonic() + 1.0


def test_it_is_not_good_for_longer_than_it_may_be_used() -> None:
    users = cache(FakeCatalog(), 0.5)
    began = monotonic()
    user = trio.run(users.read, ANN)
    read = monotonic()
    assert users.fresh(ANN) is user is not None
    assert began + 0.5 <= user.good_until <= read + 0.5


def test_it_is_not_good_any_more_when_users_have_changed() -> None:
    users = cache(FakeCatalog(), 30.0)
    user = trio.run(users.find, ANN)
    assert users.fresh(ANN) is user is not None
    users.forget()
    assert user.good_until == 0.0


def test_it_is_not_good_any_more_when_there_is_a_newer_one() -> None:
    users = cache(FakeCatalog(), 30.0)
    user = trio.run(users.find, ANN)
    assert users.fresh(ANN) is user is not None
    newer = trio.run(users.read, ANN)
    assert users.fresh(ANN) is newer is not user
    assert user.good_until == 0.0
