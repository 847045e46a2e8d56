"""The sessions that a server has seen."""

import bson
import pytest
from bson.binary import Binary

from shardwright.sharding.logical_sessions import NO_USER, SessionCache, SessionChanges, SessionId
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

A, B, C = (bytes([number]) * 16 for number in range(3))
USER = b"u" * 32


def lsid(session: bytes, **more: object) -> bytes:
    return bson.encode({"id": Binary(session, 4), **more})


def test_the_last_use_of_each_session_is_known() -> None:
    cache = SessionCache()
    cache.use(lsid(A), 1)
    cache.use(lsid(B), 2)
    cache.use(lsid(A), 3)
    assert cache.sessions() == {SessionId(A): 3, SessionId(B): 2}
    assert len(cache) == 2


def test_a_session_without_a_user_is_nobodys() -> None:
    cache = SessionCache()
    cache.use(lsid(A), 1)
    cache.use(lsid(A, uid=Binary(NO_USER)), 2)
    cache.use(lsid(A, uid=Binary(USER)), 3)
    assert cache.sessions() == {SessionId(A): 2, SessionId(A, USER): 3}


def test_a_refresh_takes_everything() -> None:
    cache = SessionCache()
    cache.use(lsid(A), 1)
    cache.use(lsid(B), 2)
    cache.end([SessionId(B), SessionId(C)])
    cache.use(lsid(B), 3)  # an operation that was still under way
    changes = cache.take()
    assert changes == SessionChanges({SessionId(A): 1}, {SessionId(B), SessionId(C)})
    assert len(cache) == 0
    assert cache.take() == SessionChanges()


def test_what_could_not_be_written_is_kept() -> None:
    cache = SessionCache()
    cache.use(lsid(A), 1)
    cache.end([SessionId(B)])
    changes = cache.take()
    cache.use(lsid(A), 2)
    cache.use(lsid(C), 1)
    cache.put_back(changes)
    assert cache.take() == SessionChanges({SessionId(A): 2, SessionId(C): 1}, {SessionId(B)})


def test_the_user_of_a_session_is_known_until_it_is_written() -> None:
    cache = SessionCache()
    cache.use(lsid(A), 1, "alice@admin")
    cache.use(lsid(B), 1)
    cache.use(lsid(C), 1, "bob@shop")
    cache.end([SessionId(C)])
    assert cache.users == {SessionId(A): "alice@admin", SessionId(C): "bob@shop"}
    changes = cache.take()
    assert changes.users == {SessionId(A): "alice@admin"}
    assert cache.users == {}
    cache.put_back(changes)
    assert cache.take().users == {SessionId(A): "alice@admin"}


def test_there_is_a_greatest_number_of_sessions() -> None:
    cache = SessionCache(1)
    cache.use(lsid(A), 1)
    cache.use(lsid(A), 2)
    with pytest.raises(CommandError) as caught:
        cache.use(lsid(B), 3)
    assert caught.value.code == ErrorCode.TooManyLogicalSessions
    cache.take()
    cache.use(lsid(B), 4)
    assert cache.sessions() == {SessionId(B): 4}


def test_an_id_is_stored_as_mongod_stores_it() -> None:
    assert list(SessionId(A).to_document().items()) == [("id", Binary(A, 4)), ("uid", Binary(NO_USER))]
