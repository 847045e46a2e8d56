"""The drivers' own log-ins, with and without TLS: their own tests of them, scripts for Node, and mongosh's helpers."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import bson
import pytest

from shardwright.mongosh_compat.runner import run_code, run_script
from tests.access_control.conftest import SecuredRouter
from tests.access_control.users import PASSWORD, LogIn
from tests.credentials import Credentials
from tests.integration.raw_client import RawClient
from tests.local_cluster import RunningCluster, client_of
from tests.pymongo_suite.files import TLS
from tests.pymongo_suite.part import check_file, check_file_at
from tests.wire.raw_connection import op_query_frame

SCRIPTS: Final = Path(__file__).parent / "scripts"
SECONDS_MAX: Final = 120.0
ROOT: Final = "chief"
X509: Final = "MONGODB-X509"


@pytest.mark.usefixtures("suite_user")
@pytest.mark.parametrize(("file", "passed_min"), [("test_auth", 7), ("tornado_tests/test_motor_auth", 3)])
def test_the_drivers_own_tests_of_log_ins(closed: RunningCluster, tmp_path: Path, file: str, passed_min: int) -> None:
    check_file(closed, tmp_path, file, passed_min)


# Of those of `TLS` the suite itself skips what is about open servers, other versions of Python, or asyncio.
@pytest.mark.usefixtures("suite_user")
@pytest.mark.parametrize(("file", "passed_min"), [(TLS, 13), ("test_auth", 7), ("test_auth_spec", 50)])
def test_pymongos_own_tests_over_tls(secured_router: SecuredRouter, tmp_path: Path, file: str, passed_min: int) -> None:
    check_file_at(secured_router.address, tmp_path, file, passed_min)


def log_in_with_node(*arguments: str) -> None:
    command = ["node", "--unhandled-rejections=strict", str(SCRIPTS / "log_in.mjs"), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert (completed.returncode, completed.stdout) == (0, "done\n"), completed.stderr


def test_nodes_driver_logs_in(closed: RunningCluster) -> None:
    log_in_with_node(closed.address("router.0"), ROOT, PASSWORD)


def test_nodes_driver_logs_in_over_tls(secured_router: SecuredRouter) -> None:
    options = (secured_router.root.tls_words, secured_router.certificate_name)
    log_in_with_node(secured_router.address, ROOT, PASSWORD, *options)


class OldConnection(RawClient):
    """A connection on which commands are sent as drivers did before OP_MSG."""

    def command(self, command: dict[str, Any], *, db: str = "admin", flags: int = 0) -> dict[str, Any]:
        """Run a command by OP_QUERY and return the reply."""
        self.send(op_query_frame(f"{db}.$cmd", command, flags=flags))
        return dict(bson.decode(self.receive()[36:]))


def test_an_old_driver_logs_in(closed: RunningCluster) -> None:
    old = OldConnection(closed.address("router.0"))
    try:
        assert old.command({"find": "goods"}, db="shop")["codeName"] == "UnsupportedOpQueryCommand"
        LogIn(old, ROOT).complete()
        old.send_command({"find": "goods", "limit": 1}, db="shop")
        assert old.receive_reply()["ok"] == 1
    finally:
        old.socket.close()


def log_in_with_mongosh(uri: str) -> None:
    variables = {"rootName": ROOT, "rootPassword": PASSWORD}
    run_script(uri, SCRIPTS / "log_in.js", variables=variables, timeout=SECONDS_MAX).check()


def test_mongosh_logs_in_and_manages_users(closed: RunningCluster) -> None:
    root = Credentials(ROOT, PASSWORD, "admin")
    log_in_with_mongosh(root.uri(closed.address("router.0"), directConnection="true"))


def test_mongosh_logs_in_and_manages_users_over_tls(secured_router: SecuredRouter) -> None:
    log_in_with_mongosh(secured_router.root.uri(secured_router.address, directConnection="true"))


@pytest.fixture
def certified(secured_router: SecuredRouter) -> Iterator[str]:
    """The name of the user with the certificate for clients, for as long as it is one."""
    with client_of(secured_router.address) as root:
        external = root["$external"]
        external.command("createUser", secured_router.certificate_name, roles=[{"role": "read", "db": "shop"}])
        yield secured_router.certificate_name
        external.command("dropUser", secured_router.certificate_name)


def test_mongosh_logs_in_with_a_certificate(secured_router: SecuredRouter, certified: str) -> None:
    nobody = Credentials(tls=secured_router.root.tls)
    uri = nobody.uri(secured_router.address, authMechanism=X509, authSource="$external")
    code = """
        const shop = db.getSiblingDB("shop");
        const status = shop.runCommand({ connectionStatus: 1 })
        shop.goods.findOne({ a: 7 }).a + " " + status.authInfo.authenticatedUsers[0].user
    """
    assert run_code(uri, code).check().strip() == f"7 {certified}"
    refused = run_code(uri, 'db.getSiblingDB("other").secret.findOne()')
    assert refused.exit_code != 0
    assert "not authorized on other" in refused.output
