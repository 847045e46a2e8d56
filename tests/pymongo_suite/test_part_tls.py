"""The drivers' own tests of TLS that need a server without access control; `tests/access_control` runs the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.credentials import Credentials
from tests.integration.routers import router_of
from tests.local_cluster import RunningCluster, set_credentials
from tests.pymongo_suite.files import MOTOR_TLS
from tests.pymongo_suite.part import check_file_at
from tests.source_distributions import source_distribution


@pytest.fixture(scope="module")
def router(cluster: RunningCluster) -> Iterator[str]:
    """The address of a router that asks clients for certificates; it reaches the daemons by their sockets."""
    folder = source_distribution("pymongo") / "test" / "certificates"
    files = {"caFile": str(folder / "ca.pem"), "clientCertificateFile": str(folder / "client.pem")}
    certificates = ("--tls-certificate-key-file", str(folder / "server.pem"), "--tls-ca-file", files["caFile"])
    sockets = ("--unix-socket-directory", str(cluster.directory / "sockets"))

    def register(address: str) -> None:
        set_credentials(address, Credentials(tls=files))

    config_servers = f"config/{cluster.address('config.0.configd')}"
    options = ("--tls-mode", "require", *certificates, *sockets)
    with router_of(config_servers, *options, register=register) as (address, _):
        yield address


@pytest.mark.parametrize("file", MOTOR_TLS)
def test_only_exceptions_fail(router: str, tmp_path: Path, file: str) -> None:
    check_file_at(router, tmp_path, file, passed_min=5)
