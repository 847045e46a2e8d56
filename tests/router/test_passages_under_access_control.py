"""Passages of a router with access control and an audit log: they allow nothing that the user may not do."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import bson
import pytest
import trio
from bson.binary import Binary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.daemon.users import UserName
from tests.router.passage_router import BY_KEY, PassageRouter, Reply, command, exchange, passage_router, usual_reply
from tests.router.passage_users import (
    ANN,
    BEN,
    BYPASS,
    READ,
    READ_AND_WRITE,
    audit_log,
    audited,
    change_privileges,
    control_access,
    log_in,
    replace_user,
)
from tests.router.test_passages import (
    BY_HASH,
    EACH,
    EVENTS,
    NOT_SHARDED,
    SESSION,
    Step,
    check_same,
    drivers,
    find,
    frames,
    insert,
    observed,
    varied,
)
from tests.wire.transport.serving import RawClient

LOG_OUT = command({"logout": 1, "$db": "admin"})

CHANGES: dict[str, Callable[[PassageRouter], object]] = {
    "may only read": lambda router: change_privileges(router, READ),
    "may do nothing": lambda router: change_privileges(router, []),
    "may bypass": lambda router: change_privileges(router, BYPASS),
    "may read and write": lambda router: change_privileges(router, READ_AND_WRITE),
    "user dropped": lambda router: replace_user(router, None),
    "user replaced": lambda router: replace_user(router, b"another"),
    "cache forgotten": lambda router: router.context.log_ins.users.forget(),
    "other user": partial(log_in, user=BEN),
    "first user": partial(log_in, user=ANN),
}

REFUSED = {"may only read", "may do nothing", "user dropped", "user replaced"}


def owned(user: UserName) -> dict[str, Any]:
    """The fields of drivers, with an owner in the session."""
    return {**drivers(), "lsid": {**SESSION, "uid": Binary(user.digest)}}


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., int]:
    """Checks that passages change nothing for users, nor in the audit log; returns how many requests took one."""

    def checked(steps: Sequence[Step], **options: Any) -> int:  # noqa: ANN401
        return check_audited(steps, tmp_path, **options)

    return checked


def check_audited(steps: Sequence[Step], directory: Path, **options: Any) -> int:  # noqa: ANN401
    paths = {is_on: directory / f"{is_on}.json" for is_on in (True, False)}
    for path in paths.values():
        path.unlink(missing_ok=True)
    results = [
        trio.run(
            partial(
                observed,
                steps,
                before=control_access,
                connected=log_in,
                audit=audit_log(paths[is_on]),
                is_on=is_on,
                **options,
            )
        )
        for is_on in (True, False)
    ]
    (on, counts_on, taken), (off, counts_off, taken_off) = results
    assert taken_off == 0
    for number, (with_passages, without) in enumerate(zip(on, off, strict=True)):
        assert with_passages == without, number
    assert counts_on == counts_off
    assert audited(paths[True]) == audited(paths[False])
    return taken


@asynccontextmanager
async def logged_in() -> AsyncIterator[tuple[PassageRouter, RawClient]]:
    """A router with access control, and a client who has logged in."""
    async with passage_router() as router:
        control_access(router)
        client = await router.connect()
        await router.wait_until(lambda: bool(router.server.clients))
        log_in(router)
        yield router, client


class TestSame:
    @pytest.mark.parametrize("make", EACH.values(), ids=EACH)
    @pytest.mark.parametrize("routing", [BY_KEY, BY_HASH, NOT_SHARDED], ids=["range", "hashed", "not sharded"])
    def test_each_kind(self, make: Callable[[int], bytes], routing: Any, check: Callable[..., int]) -> None:  # noqa: ANN401
        assert check([make(key) for key in (1, 99, 49, 50, 1, 70)], routing=routing) == 4

    def test_sessions_with_an_owner(self, check: Callable[..., int]) -> None:
        assert check([find(key, **owned(ANN)) for key in (1, 99, 2, 3)]) == 2
        assert check([find(key, **owned(BEN)) for key in (1, 99, 2, 3)]) == 0

    def test_several_sessions(self, check: Callable[..., int]) -> None:
        lsids = [{"id": Binary(bytes([number % 3]) * 16, 4)} for number in range(9)]
        assert check([find(1, **{**drivers(), "lsid": lsid}) for lsid in lsids]) >= 5

    @pytest.mark.parametrize(
        "make", [lambda key: insert({"_id": key}, **{"$db": "admin"}), lambda key: find(key, **{"$db": "admin"})]
    )
    def test_writes_that_may_be_events(self, make: Callable[[int], bytes], check: Callable[..., int]) -> None:
        check([make(key) for key in range(5)])

    def test_an_error_of_a_shard_is_audited(self, check: Callable[..., int]) -> None:
        def replies() -> Callable[[Any], Any]:
            refused = {"ok": 0.0, "code": 13, "codeName": "Unauthorized", "errmsg": "not authorized"}
            numbers = iter(range(100))
            return lambda request: refused if next(numbers) == 4 else usual_reply(request)

        assert check([EACH["update"](key) for key in range(6)], replies=replies) == 3


class TestChanges:
    @pytest.mark.parametrize("kind", ["find", "insert", "insert-in-body", "update", "findAndModify"])
    @pytest.mark.parametrize("change", [*CHANGES, "log-out"])
    def test_what_changes_is_obeyed_at_once(self, change: str, kind: str, check: Callable[..., int]) -> None:
        before: list[Step] = [EACH[kind](key) for key in (1, 99, 3)]
        after: list[Step] = [EACH[kind](key) for key in (4, 98, 5, 97)]
        assert check([*before, LOG_OUT if change == "log-out" else CHANGES[change], *after]) >= 1

    @pytest.mark.parametrize("change", sorted(REFUSED))
    def test_refusals(self, change: str) -> None:
        steps = [EACH["update"](1) for _ in range(3)]
        seen, _, taken = trio.run(
            partial(
                observed,
                [*steps, CHANGES[change], *steps],
                before=control_access,
                connected=log_in,
                is_on=True,
            )
        )
        assert taken == 1
        for sent, reply in seen[3:]:
            assert not sent
            assert bson.decode(reply[13:])["codeName"] == "Unauthorized"

    def test_users_have_passages_of_their_own(self, check: Callable[..., int]) -> None:
        steps: list[Step] = []
        for number in range(12):
            steps += [CHANGES["other user" if number % 2 else "first user"], *(EACH["update"](key) for key in (1, 2))]
        # The first request after a log-in is admitted; a user's second one with a beginning is learned.
        assert check(steps) == 10

    @pytest.mark.parametrize(("change", "learned"), [("cache forgotten", 1), ("may bypass", 2)])
    async def test_the_same_privileges_keep_their_passages(self, change: str, learned: int) -> None:
        async with logged_in() as (router, client):
            for key in (1, 2, 3):
                await exchange(client, EACH["find"](key))
            CHANGES[change](router)
            for key in (1, 2, 3):
                await exchange(client, EACH["find"](key))
            assert router.taken == 2
            assert router.outcomes["learned"] == learned

    async def test_a_user_who_is_dropped_during_an_operation(self) -> None:
        """It was admitted, so that it is completed; the next one is refused."""

        async with logged_in() as (router, client):
            for key in (1, 2, 3):
                await exchange(client, EACH["update"](key))
            assert router.taken == 1
            may_answer, router.has_sent = trio.Event(), trio.Event()
            router.answer = lambda _, request: Reply(usual_reply(request), (30,), wait=may_answer.wait)
            await client.send(EACH["update"](1))
            await router.has_sent.wait()
            sent = len(router.sent)
            replace_user(router, None)
            may_answer.set()
            reply = await client.receive()
            assert reply is not None
            assert bson.decode(reply[21:])["ok"] == 1
            assert router.outcomes["left"] == 1
            assert len(router.sent) == sent
            reply = await exchange(client, EACH["update"](1))
            assert reply is not None
            assert bson.decode(reply[21:])["codeName"] == "Unauthorized"

    async def test_a_running_operation_is_in_its_owners_session(self) -> None:
        async with logged_in() as (router, client):
            for key in (1, 2, 3):
                await exchange(client, EACH["find"](key))
            may_answer, router.has_sent = trio.Event(), trio.Event()
            router.answer = lambda _, request: Reply(usual_reply(request), wait=may_answer.wait)
            await client.send(EACH["find"](1))
            await router.has_sent.wait()
            [served] = router.server.clients
            lsid = served.state.operation.request.get(b"lsid")
            assert lsid["uid"] == ANN.digest
            may_answer.set()
            assert await client.receive() is not None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.builds(varied, frames(), st.lists(st.integers(0, 10_000), max_size=6)),
            st.sampled_from(sorted(CHANGES)).map(lambda name: [CHANGES[name]]),
            st.sampled_from(sorted(EVENTS)).map(lambda name: [EVENTS[name]]),
            st.just([LOG_OUT]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_passages_change_nothing(tmp_path_factory: pytest.TempPathFactory, steps: list[list[Step]]) -> None:
    check_audited([step for several in steps for step in several], tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("make", EACH.values(), ids=EACH)
def test_an_audit_log_without_access_control(make: Callable[[int], bytes], tmp_path: Path) -> None:
    log = audit_log(tmp_path / "audit.json")
    assert check_same([make(key) for key in (1, 99, 49, 50)], audit=log) == 2
    assert audited(tmp_path / "audit.json") == []
