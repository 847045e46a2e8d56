"""Client address restrictions at log-in and afterwards, compared with a mongod; and their changes at other routers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.access_control.conftest import PlainMongod
from tests.access_control.users import PASSWORD, LogIn, user_of
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

HERE: Final = "127.0.0.0/8"
ELSEWHERE: Final = "192.0.2.0/24"
USER: Final = "restricted"
ROLE: Final = "restrictor"
INTERVAL: Final = "userCacheInvalidationIntervalSecs"
OUT: Final = (13, "command find requires authentication")

Restrictions = list[dict[str, list[str]]]

RESTRICTIONS: Final[dict[str, Restrictions]] = {
    "none": [],
    "here": [{"clientSource": [HERE]}],
    "this server": [{"serverAddress": ["127.0.0.1"]}],
    "elsewhere": [{"clientSource": [ELSEWHERE]}],
    "another server": [{"serverAddress": [ELSEWHERE, "::1"]}],
    "both, one of which is not met": [{"clientSource": [HERE], "serverAddress": [ELSEWHERE]}],
    "two, one of which is met": [{"clientSource": [ELSEWHERE]}, {"clientSource": ["127.0.0.1", ELSEWHERE]}],
}


@contextmanager
def restricted(root: Client, of_user: Restrictions, of_role: Restrictions) -> Iterator[None]:
    """A user, and a role of that user, with restrictions."""
    privileges = [{"resource": {"db": "shop", "collection": ""}, "actions": ["find"]}]
    root.admin.command("createRole", ROLE, privileges=privileges, roles=[], authenticationRestrictions=of_role)
    try:
        root.admin.command("createUser", USER, pwd=PASSWORD, roles=[ROLE], authenticationRestrictions=of_user)
        yield
    finally:
        root.admin.command("dropUser", USER)
        root.admin.command("dropRole", ROLE)


def both(closed: RunningCluster, plain: PlainMongod) -> list[tuple[Client, str]]:
    """The router and the mongod: a client who may do everything, to be closed, and the address."""
    return [(closed.direct("router.0"), closed.address("router.0")), (plain.client("root"), plain.address)]


def outcome(reply: Mapping[str, Any]) -> tuple[int, str] | None:
    """The error in a reply; None if it has none."""
    return None if reply["ok"] else (reply["code"], reply["errmsg"])


def log_in(raw: RawClient) -> tuple[int, str] | None:
    """Log in as the user; returns the error."""
    steps = LogIn(raw, USER)
    return outcome(steps.go_on(steps.proof(steps.start()["payload"])))


def find(raw: RawClient, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - any argument
    return raw.command({"find": "goods", "limit": 2, **arguments}, db="shop")


@pytest.mark.parametrize("of_role", ["none", "here", "elsewhere"])
def test_who_may_log_in_is_decided_as_by_a_mongod(closed: RunningCluster, plain: PlainMongod, of_role: str) -> None:
    seen: list[dict[str, tuple[int, str] | None]] = []
    for root, address in (
        (closed.direct("router.0"), closed.address("router.0")),
        (plain.client("root"), plain.address),
    ):
        seen.append({})
        with root:
            for name, of_user in RESTRICTIONS.items():
                with restricted(root, of_user, RESTRICTIONS[of_role]), raw_client(address) as raw:
                    seen[-1][name] = log_in(raw)
    assert seen[0] == seen[1]
    admitted = {name for name, error in seen[0].items() if error is None}
    assert admitted == (
        set() if of_role == "elsewhere" else {"none", "here", "this server", "two, one of which is met"}
    )


def restrict_user(root: Client, restrictions: Restrictions) -> None:
    root.admin.command("updateUser", USER, authenticationRestrictions=restrictions)


def restrict_role(root: Client, restrictions: Restrictions) -> None:
    root.admin.command("updateRole", ROLE, authenticationRestrictions=restrictions)


@pytest.mark.parametrize("restrict", [restrict_user, restrict_role])
def test_a_new_restriction_logs_out_for_good_as_at_a_mongod(
    closed: RunningCluster, plain: PlainMongod, restrict: Callable[[Client, Restrictions], None]
) -> None:
    def story(root: Client, raw: RawClient) -> list[Any]:
        seen: list[Any] = [log_in(raw)]
        cursor = find(raw, limit=0, batchSize=2)["cursor"]["id"]
        restrict(root, RESTRICTIONS["here"])
        seen.append(outcome(find(raw)))
        restrict(root, RESTRICTIONS["elsewhere"])
        seen.append(outcome(raw.command({"getMore": cursor, "collection": "goods"}, db="shop")))
        seen += [outcome(find(raw)), raw.command({"connectionStatus": 1})["authInfo"]]
        restrict(root, [])
        return [*seen, outcome(find(raw)), log_in(raw), outcome(find(raw))]

    stories: list[list[Any]] = []
    for root, address in (
        (closed.direct("router.0"), closed.address("router.0")),
        (plain.client("root"), plain.address),
    ):
        with root, restricted(root, [], []), raw_client(address) as raw:
            stories.append(story(root, raw))
    assert stories[0] == stories[1]
    assert [stories[0][1], stories[0][3], stories[0][5]] == [None, OUT, OUT]


def test_each_connection_is_judged_by_itself(closed: RunningCluster) -> None:
    """Also the second one, for which the description of the user has been read again already."""
    with (
        closed.direct("router.0") as root,
        restricted(root, [], []),
        raw_client(closed.address("router.0")) as first,
        raw_client(closed.address("router.0")) as second,
    ):
        assert [log_in(first), log_in(second)] == [None, None]
        restrict_user(root, RESTRICTIONS["elsewhere"])
        assert [outcome(find(first)), outcome(find(second))] == [OUT, OUT]


@contextmanager
def interval_at(root: Client, seconds: int) -> Iterator[None]:
    before = root.admin.command({"getParameter": 1, INTERVAL: 1})[INTERVAL]
    root.admin.command({"setParameter": 1, INTERVAL: seconds})
    try:
        yield
    finally:
        root.admin.command({"setParameter": 1, INTERVAL: before})


def revoke(root: Client) -> None:
    root.admin.command("revokeRolesFromUser", USER, roles=[ROLE])


def drop_and_create(root: Client) -> None:
    root.admin.command("dropUser", USER)
    root.admin.command("createUser", USER, pwd=PASSWORD, roles=[ROLE])


def restrict_to_elsewhere(root: Client) -> None:
    restrict_user(root, RESTRICTIONS["elsewhere"])


@pytest.mark.parametrize(
    ("change", "message"),
    [(revoke, "not authorized on shop"), (drop_and_create, OUT[1]), (restrict_to_elsewhere, OUT[1])],
)
def test_another_router_learns_of_a_change_within_the_interval(
    closed: RunningCluster, change: Callable[[Client], None], message: str
) -> None:
    with (
        closed.direct("router.0") as root,
        user_of(closed, "chief", "router.1") as chief,
        restricted(root, [], []),
        raw_client(closed.address("router.1")) as raw,
    ):
        assert log_in(raw) is None
        with interval_at(chief, 86_400):
            assert find(raw)["ok"]
            change(root)
            assert find(raw)["ok"], "what is cached is used for that long"
        with interval_at(chief, 1):
            refused = eventually(lambda: outcome(find(raw)), what="the change is seen")
    assert refused[0] == OUT[0]
    assert refused[1].startswith(message)
