"""A closed cluster, and a mongod with the same users."""

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from bench.mongods import primary_mongod
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role
from tests.access_control.users import PASSWORD, create_users
from tests.credentials import Credentials
from tests.integration.routers import router_of
from tests.local_cluster import Client, RunningCluster, running_cluster, set_credentials
from tests.pymongo_suite.deployments import SUITE_USER, create_suite_user
from tests.source_distributions import source_distribution


@dataclass(frozen=True)
class PlainMongod:
    """A replica set of one mongod with a key file.

    Attributes:
        address: ``host:port``.
        key: the text of the key.
    """

    address: str
    key: str

    def client(self, user: str | None) -> Client:
        """A new client in the name of a user; close it."""
        given: dict[str, Any] = {} if user is None else {"username": user, "password": PASSWORD}
        return Client(self.address, directConnection=True, **given)


AUDIT: Final = {"shardd": "audit-of-shards.json", "configd": "audit-of-config-servers.json"}
"""The audit logs of the daemons of the closed cluster, in its directory; its routers have none."""

_CACHE_GB: Final = 0.25
_SET: Final = "plain"


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster: two shards, two routers, and a sharded collection with a few documents; its daemons are audited."""
    directory = tmp_path_factory.mktemp("closed")
    options = [
        word
        for role, file in AUDIT.items()
        for option in ("audit-destination=file", f"audit-path={directory / file}")
        for word in (f"--{role}-option", option)
    ]
    with (
        running_cluster(directory, "--auth", "--routers", "2", *options) as cluster,
        cluster.client() as root,
    ):
        create_users(root)
        root.admin.command("enableSharding", "shop", primaryShard="shard0")
        root.admin.command("shardCollection", "shop.goods", key={"a": 1})
        _fill(root)
        yield cluster


@dataclass(frozen=True)
class SecuredRouter:
    """A router that asks for TLS, with the certificates of PyMongo's suite.

    Attributes:
        address: ``host:port``.
        root: the user with the role root, over TLS.
        certificate_name: the subject of the certificate for clients.
    """

    address: str
    root: Credentials
    certificate_name: str


@pytest.fixture(scope="session")
def secured_router(closed: RunningCluster) -> Iterator[SecuredRouter]:
    """A further router of the closed cluster; without TLS, it reaches the daemons by their sockets."""
    folder = source_distribution("pymongo") / "test" / "certificates"
    files = {"caFile": str(folder / "ca.pem"), "clientCertificateFile": str(folder / "client.pem")}
    certificates = ("--tls-certificate-key-file", str(folder / "server.pem"), "--tls-ca-file", files["caFile"])
    # The suite's own tests expect that clients need no certificate.
    tls = ("--tls-mode", "require", *certificates, "--tls-allow-connections-without-certificates")
    sockets = ("--unix-socket-directory", str(closed.directory / "sockets"))
    root = Credentials("chief", PASSWORD, "admin", files)
    config_servers = f"config/{closed.address('config.0.configd')}"
    options = (*closed.daemon_options, *tls, *sockets)

    def register(address: str) -> None:
        set_credentials(address, root)

    with router_of(config_servers, *options, register=register) as (address, _):
        yield SecuredRouter(address, root, "C=US,ST=New York,L=New York City,O=MDB,OU=Drivers,CN=client")


@pytest.fixture(scope="session")
def suite_user(closed: RunningCluster) -> str:
    """The name of the user of PyMongo's suite."""
    with closed.direct("router.0") as root:
        create_suite_user(root)
    return SUITE_USER


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, mongod_binary: str) -> Iterator[PlainMongod]:
    """The mongod."""
    directory = tmp_path_factory.mktemp("plain")
    with PortReservation() as ports:
        plan = ProcessPlan(_SET, Role.MONGOD, ports.hold_free(), _SET)
        ports.release(*plan.ports())
        key = directory / "key"
        key.write_text(base64.b64encode(os.urandom(60)).decode())
        key.chmod(0o600)
        mongod = PlainMongod(plan.address, key.read_text())

        with primary_mongod(mongod_binary, plan, directory / "data", _CACHE_GB, "--keyFile", str(key)):
            with mongod.client(None) as first:
                first.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
            with mongod.client("root") as root:
                create_users(root)
                _fill(root)
            yield mongod


def _fill(root: Client) -> None:
    root.shop.goods.insert_many([{"a": number} for number in range(200)])
    root.shop.plain.insert_many([{"a": number} for number in range(5)])
    root.other.secret.insert_one({"a": 1})
