"""The first user of a cluster: who may create it without a log-in, what else may not be done, and that it is one."""

import base64
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import pytest

from bench.mongods import primary_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from tests.access_control.users import PASSWORD, LogIn
from tests.credentials import NOBODY
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import connect_to_all, router_of
from tests.local_cluster import RunningCluster, running_cluster, set_credentials
from tests.wire.raw_connection import RawConnection

Command = dict[str, Any]

UNAUTHORIZED: Final = 13
_CONNECTIONS: Final = 12
AT_ONCE: Final = 8
ROOT: Final = {"role": "root", "db": "admin"}
FIRST: Final = {"createUser": "first", "pwd": PASSWORD, "roles": ["root"]}
MISSING_SHARD: Final = {"addShard": "missing/127.0.0.1:1"}
RESTRICTION: Final = {"clientSource": ["127.0.0.1"]}

REFUSED: Final[list[tuple[str, Command]]] = [
    ("shop", FIRST),
    ("admin", {**FIRST, "roles": [{"role": "read", "db": "shop"}]}),
    ("admin", {**FIRST, "roles": ["root", {"role": "dbOwner", "db": "shop"}]}),
    ("admin", {**FIRST, "authenticationRestrictions": [RESTRICTION]}),
    ("$external", {"createUser": "CN=x", "roles": [{"role": "read", "db": "shop"}]}),
    ("admin", {"createRole": "first", "privileges": [], "roles": ["root"]}),
    ("admin", {"updateUser": "first", "roles": ["root"]}),
    ("admin", {"dropUser": "first"}),
    ("admin", {"usersInfo": 1}),
    ("admin", {"find": "system.users"}),
    ("admin", {"insert": "system.users", "documents": [{"user": "first", "db": "admin", "roles": [ROOT]}]}),
    ("admin", {"setParameter": 1, "logLevel": 1}),
    ("admin", {"shutdown": 1}),
]
"""Commands that do not create the first user of admin with roles of admin."""

STRICTER: Final[list[Command]] = [{"grantRolesToUser": "first", "roles": ["root"]}, {"listDatabases": 1}]
"""Commands that a mongod allows under the localhost exception although they have no effect."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A closed cluster."""
    with running_cluster(tmp_path_factory.mktemp("keyed"), "--auth", "--shards", "1") as cluster:
        yield cluster


@pytest.fixture
def without_users(keyed: RunningCluster) -> RunningCluster:
    """The cluster, which has no user."""
    with keyed.direct("config.0.configd") as config:
        for db in ("admin", "$external"):
            config[db].command("dropAllUsersFromDatabase", 1)
            config[db].command("dropAllRolesFromDatabase", 1)
    return keyed


@contextmanager
def new_router(cluster: RunningCluster, *options: str) -> Iterator[str]:
    """The address of a new router, where connections do not log in."""
    system = cluster.credentials(is_router=False)
    config_servers = f"config/{cluster.address('config.0.configd')}"
    with router_of(
        config_servers, *cluster.daemon_options, *options, register=lambda address: set_credentials(address, system)
    ) as (address, _):
        set_credentials(address, NOBODY)
        yield address


@pytest.fixture
def router(without_users: RunningCluster, tmp_path: Path) -> Iterator[str]:
    """The address of a new router of the cluster, which has no user."""
    with new_router(without_users, "--bind-ip", "0.0.0.0", "--unix-socket-directory", str(tmp_path)) as address:
        yield address


@pytest.fixture
def at_both_workers(without_users: RunningCluster) -> Iterator[list[RawClient]]:
    """Connections to both processes of another new router, which have not logged in."""
    with new_router(without_users, "--workers", "2") as address:
        set_credentials(address, without_users.credentials(is_router=False))
        connections = connect_to_all(address, 2, _CONNECTIONS)
        for raw in connections:
            assert raw.command({"logout": 1}, db="local")["ok"]
        yield connections
        for raw in connections:
            raw.socket.close()


@pytest.fixture
def mongod(tmp_path_factory: pytest.TempPathFactory, mongod_binary: str) -> Iterator[str]:
    """The address of a mongod with a key file and without users."""
    directory = tmp_path_factory.mktemp("mongod")
    key = directory / "key"
    key.write_text(base64.b64encode(os.urandom(60)).decode())
    key.chmod(0o600)
    with PortReservation() as ports:
        plan = ProcessPlan("first", Role.MONGOD, ports.hold_free(), "first")
        ports.release(*plan.ports())
        with primary_mongod(mongod_binary, plan, directory / "data", 0.25, "--keyFile", str(key)):
            yield plan.address


def verdict(raw: RawClient, command: Command, db: str) -> tuple[int, str]:
    """The code and the text of the error; 0 and nothing without one."""
    reply = raw.command(command, db=db)
    return reply.get("code", 0), reply.get("errmsg", "")


def test_what_a_mongod_lets_strangers_do(router: str, mongod: str) -> None:
    with raw_client(router) as ours, raw_client(mongod) as theirs:
        for db, command in REFUSED:
            expected = verdict(theirs, command, db)
            assert expected[0] == UNAUTHORIZED, command
            assert verdict(ours, command, db) == expected, command
        for command in STRICTER:
            assert verdict(ours, command, "admin")[0] == UNAUTHORIZED
            assert verdict(theirs, command, "admin")[0] != UNAUTHORIZED
        assert verdict(ours, MISSING_SHARD, "admin")[0] not in (0, UNAUTHORIZED)
        assert verdict(ours, FIRST, "admin") == verdict(theirs, FIRST, "admin") == (0, "")
        again = {**FIRST, "createUser": "second"}
        expected = verdict(theirs, again, "admin")
        assert expected[0] == UNAUTHORIZED
        assert verdict(ours, again, "admin") == expected
        assert verdict(ours, MISSING_SHARD, "admin")[0] == UNAUTHORIZED
    with raw_client(router) as raw:
        LogIn(raw, "first").complete()
        assert raw.command({"usersInfo": 1})["users"][0]["roles"] == [ROOT]


def test_it_is_over_for_good(router: str, keyed: RunningCluster) -> None:
    with raw_client(router) as raw:
        assert raw.command(FIRST)["ok"]
        assert raw.command(FIRST)["code"] == UNAUTHORIZED
        with keyed.direct("config.0.configd") as config:
            config.admin.command("dropUser", "first")
        assert raw.command(FIRST)["code"] == UNAUTHORIZED


def test_it_is_over_at_every_router(router: str, at_both_workers: list[RawClient]) -> None:
    def who_may_be_the_first() -> set[bool]:
        """With the exception the error says that the command is not allowed, without it that a log-in is needed."""
        told = {verdict(raw, {"usersInfo": 1}, "admin")[1] for raw in at_both_workers}
        return {text != "command usersInfo requires authentication" for text in told}

    assert who_may_be_the_first() == {True}
    with raw_client(router) as raw:
        assert raw.command(FIRST)["ok"]
    assert who_may_be_the_first() == {False}
    assert {raw.command(FIRST)["code"] for raw in at_both_workers} == {UNAUTHORIZED}


def test_it_is_over_for_good_at_every_process_of_a_router(
    at_both_workers: list[RawClient], keyed: RunningCluster
) -> None:
    assert at_both_workers[0].command(FIRST)["ok"]
    with keyed.direct("config.0.configd") as config:
        config.admin.command("dropUser", "first")
    assert {raw.command(FIRST).get("code", 0) for raw in at_both_workers} == {UNAUTHORIZED}


def test_a_log_in_ends_it_for_good(router: str, keyed: RunningCluster) -> None:
    with keyed.direct("config.0.configd") as config, raw_client(router) as raw:
        config.admin.command("createUser", "first", pwd=PASSWORD, roles=["root"])
        LogIn(raw, "first").complete()
        config.admin.command("dropUser", "first")
        with raw_client(router) as stranger:
            assert stranger.command(FIRST)["code"] == UNAUTHORIZED


def test_a_role_ends_it_too(router: str, keyed: RunningCluster) -> None:
    with keyed.direct("config.0.configd") as config:
        config.admin.command("createRole", "only", privileges=[], roles=[])
    with raw_client(router) as raw:
        assert raw.command(FIRST)["code"] == UNAUTHORIZED


def test_the_first_user_may_be_external(router: str) -> None:
    external = {"createUser": "CN=first", "roles": [ROOT]}
    with raw_client(router) as raw:
        assert raw.command(external, db="$external")["ok"]
        assert raw.command(FIRST)["code"] == UNAUTHORIZED


def test_only_loopback_connections_count(router: str, tmp_path: Path) -> None:
    port = router.rpartition(":")[2]
    (path,) = tmp_path.glob("*.sock")
    connection = RawConnection(str(path))
    try:
        assert connection.command(FIRST)["code"] == UNAUTHORIZED
    finally:
        connection.close()
    if (other := other_address()) is not None:
        with raw_client(f"{other}:{port}") as raw:
            assert raw.command(FIRST)["code"] == UNAUTHORIZED
    with raw_client(f"127.0.0.2:{port}") as raw:
        assert raw.command(FIRST)["ok"]


def other_address() -> str | None:
    """An address of this machine that is not on the loopback interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # finds a route; nothing is sent
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


def test_of_several_at_once_one_is_the_first(router: str, keyed: RunningCluster) -> None:
    together = Barrier(AT_ONCE)

    @contextmanager
    def ready() -> Iterator[RawClient]:
        with raw_client(router) as raw:
            raw.command({"ping": 1})
            together.wait()
            yield raw

    def create(number: int) -> int:
        with ready() as raw:
            return int(raw.command({**FIRST, "createUser": f"user{number}"}).get("code", 0))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = sorted(pool.map(create, range(AT_ONCE)))
    assert codes == [0, *[UNAUTHORIZED] * (AT_ONCE - 1)]
    with keyed.direct("config.0.configd") as config:
        assert len(config.admin.command("usersInfo", 1)["users"]) == 1


def test_who_fails_does_not_take_it_away(router: str) -> None:
    with raw_client(router) as raw:
        failed = raw.command({**FIRST, "roles": ["missing"]})
        assert failed["codeName"] == "RoleNotFound"
        assert raw.command(FIRST)["ok"]
