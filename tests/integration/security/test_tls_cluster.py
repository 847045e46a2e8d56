"""A cluster with secured connections, as `up --tls` makes it, compared with a mongod with the same certificates."""

import shlex
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGHUP
from typing import Any, Final

import pytest
from cryptography import x509
from pymongo.errors import ConnectionFailure, OperationFailure
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from shardwright.deploy.certs import TlsFiles
from shardwright.deploy.ports import PortReservation
from shardwright.mongosh_compat.runner import find_mongosh
from tests.certificates import Authority
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster, shardwright

CLIENT_NAME: Final = "CN=client,OU=clients,O=shardwright"
PROCESSES: Final = ("router.0", "shard0.0.shardd", "config.0.configd", "shard0.0.mongod")
SHORT: Final[dict[str, Any]] = {"serverSelectionTimeoutMS": 1500}
X509: Final = "MONGODB-X509"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster; its daemons reach each other through TCP, and its router has two processes."""
    size = ("--shards", "2", "--members", "1", "--config-members", "1", "--workers", "2")
    directory = tmp_path_factory.mktemp("secured")
    with running_cluster(directory, "--auth", "--tls", "--separate-sockets", *size) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mongod(secured: RunningCluster, mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a mongod with the certificates of the cluster, and access control."""
    directory = tmp_path_factory.mktemp("beside")
    with PortReservation() as ports:
        address = f"127.0.0.1:{ports.hold_free()}"
    options = ("--dbpath", str(directory), "--port", address.partition(":")[2], "--nounixsocket", "--auth")
    # Those of the cluster admit no clients.
    files = files_of(secured)
    words = [mongod_binary, *options, *files.mongod_words(), "--tlsClusterCAFile", str(files.authorities_file)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        with Client(f"mongodb://{address}/", directConnection=True, **secured.tls) as first:
            first.admin.command("createUser", "root", pwd="pencil", roles=["root"])
        yield address
    finally:
        process.terminate()
        process.wait()


def files_of(cluster: RunningCluster) -> TlsFiles:
    return TlsFiles(cluster.directory / "tls")


def certificate_of(address: str, cluster: RunningCluster) -> int:
    """The serial number of the certificate that a server shows now."""
    context = ssl.create_default_context(cafile=str(files_of(cluster).ca_file))
    context.load_cert_chain(files_of(cluster).client_file)
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as stream,
    ):
        shown = stream.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_chunks_move(secured: RunningCluster) -> None:
    with secured.client() as client:
        client.admin.command("shardCollection", "shop.goods", key={"_id": 1})
        client.shop.goods.insert_many([{"_id": number, "text": "x" * 2000} for number in range(2000)])
        owner = client.config.chunks.distinct("shard")[0]
        (other,) = {each["_id"] for each in client.admin.command("listShards")["shards"]} - {owner}
        client.admin.command("split", "shop.goods", middle={"_id": 1000})
        client.admin.command("moveChunk", "shop.goods", find={"_id": 0}, to=other)
        assert [each["_id"] for each in client.shop.goods.find().sort("_id", -1)] == list(range(1999, -1, -1))
        assert len(list(client.shop.goods.aggregate([{"$sort": {"text": 1}}, {"$limit": 1500}]))) == 1500


def test_connections_are_counted_by_their_version_of_tls(secured: RunningCluster, mongod: str) -> None:
    secured_mongod = Client(f"mongodb://{mongod}/", username="root", password="pencil", **secured.tls)
    with secured.client() as router, secured_mongod:
        used = [
            {version: count > 0 for version, count in client.admin.command("serverStatus")["transportSecurity"].items()}
            for client in (router, secured_mongod)
        ]
    assert used[0] == used[1] == {"1.0": False, "1.1": False, "1.2": False, "1.3": True, "unknown": False}


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(
    "changed",
    [
        {"tls": False, "tlsCAFile": None, "tlsCertificateKeyFile": None},
        {"tlsCertificateKeyFile": None},
        {"tlsCertificateKeyFile": "stranger.pem"},
        {"tlsCAFile": "authority.pem"},
    ],
    ids=["plain", "no certificate", "a stranger's certificate", "another authority"],
)
def test_strangers_are_kept_out(secured: RunningCluster, tmp_path: Path, process: str, changed: dict[str, Any]) -> None:
    Authority(tmp_path).issue("stranger.pem")
    options = {name: tmp_path / value if isinstance(value, str) else value for name, value in changed.items()}
    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    kept = {name: value for name, value in {**secured.tls, **given}.items() if value is not None}
    with (
        Client(f"mongodb://{secured.address(process)}/", directConnection=True, **kept, **SHORT) as client,
        pytest.raises(ConnectionFailure),
    ):
        client.admin.command("ping")


def test_the_log_says_why(secured: RunningCluster) -> None:
    ca_file = secured.tls["tlsCAFile"]
    with (
        Client(f"mongodb://{secured.address('router.0')}/", tls=True, tlsCAFile=ca_file, **SHORT) as client,
        pytest.raises(ConnectionFailure),
    ):
        client.admin.command("ping")
    eventually(
        lambda: "no SSL certificate provided by peer; connection rejected" in secured.log("router.0"),
        what="the log has the reason",
    )


def test_mongosh_connects_as_up_says(secured: RunningCluster) -> None:
    """``status`` prints the same as ``up``."""
    printed = shardwright("status", "--dir", str(secured.directory)).stdout.splitlines()
    (how,) = [line.partition("connect with: ")[2] for line in printed if line.startswith("connect with: ")]
    assert printed[-1] == f"which asks for the password; it is in {secured.document['auth']['passwordFile']}"
    name, *words = shlex.split(how)
    assert name == "mongosh"
    password = Path(secured.document["auth"]["passwordFile"]).read_text()
    script = ("--password", password, "--quiet", "--norc", "--eval", "db.hello().msg")
    command = [find_mongosh(), *words, *script]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert completed.stdout.strip() == "isdbgrid", completed.stderr


def test_the_files_for_clients_are_described(secured: RunningCluster) -> None:
    files, auth = files_of(secured), secured.directory / "auth"
    assert secured.document["auth"] == {
        "user": "root",
        "database": "admin",
        "passwordFile": str(auth / "password"),
        "keyFile": str(auth / "key"),
    }
    assert secured.document["tls"] == {
        "caFile": str(files.ca_file),
        "clientCertificateFile": str(files.client_file),
        "memberCertificateFile": str(files.member_file),
    }
    assert {name: secured.status()[name] for name in ("auth", "tls")} == {
        name: secured.document[name] for name in ("auth", "tls")
    }


def refusal(client: Client, db: str, command: dict[str, Any]) -> tuple[int | None, str]:
    with pytest.raises(OperationFailure) as caught:
        client[db].command(command)
    return caught.value.code, str((caught.value.details or {})["errmsg"])


@pytest.mark.parametrize(
    ("file", "db", "command"),
    [
        ("client", "$external", {"user": "CN=somebody"}),
        ("client", "admin", {}),
        ("client", "$external", {}),
        ("server", "$external", {}),
    ],
)
def test_certificates_that_are_no_users_are_refused_as_by_a_mongod(
    secured: RunningCluster, mongod: str, file: str, db: str, command: dict[str, Any]
) -> None:
    path = {"client": files_of(secured).client_file, "server": files_of(secured).server_file}[file]
    options = {**secured.tls, "tlsCertificateKeyFile": str(path)}
    answers = []
    for address in (secured.address("router.0"), mongod):
        with Client(f"mongodb://{address}/", directConnection=True, **options) as client:
            answers.append(refusal(client, db, {"authenticate": 1, "mechanism": X509, **command}))
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def external_user(secured: RunningCluster) -> Iterator[str]:
    """The name of the user with the certificate for clients."""
    with secured.client() as client:
        client["$external"].command("createUser", CLIENT_NAME, roles=[{"role": "readWrite", "db": "shop"}])
        yield CLIENT_NAME
        client["$external"].command("dropUser", CLIENT_NAME)


def test_clients_log_in_with_their_certificate(secured: RunningCluster, external_user: str) -> None:
    with Client(secured.uri, authMechanism=X509, **secured.tls) as client:
        client.shop.notes.insert_one({"_id": 1})
        assert client.shop.notes.count_documents({}) == 1
        assert refusal(client, "other", {"find": "c"})[0] == 13
        status = client.admin.command("connectionStatus")["authInfo"]
        assert status["authenticatedUsers"] == [{"user": external_user, "db": "$external"}]


class Started(CommandListener):
    """The names of the commands that a client has sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """As it has to."""

    def failed(self, event: CommandFailedEvent) -> None:
        """The client raises."""


def test_the_first_hello_logs_in_with_a_certificate(secured: RunningCluster, external_user: str, mongod: str) -> None:
    """Then drivers send no `authenticate`."""
    with Client(
        f"mongodb://{mongod}/", directConnection=True, username="root", password="pencil", **secured.tls
    ) as root:
        root["$external"].command("createUser", external_user, roles=[])
    for address in (secured.address("router.0"), mongod):
        started = Started()
        options: dict[str, Any] = {"authMechanism": X509, "event_listeners": [started], **secured.tls}
        with Client(f"mongodb://{address}/", directConnection=True, **options) as client:
            client.admin.command("ping")
            assert started.names == ["ping"], address


@pytest.mark.parametrize("process", ["shard0.0.shardd", "config.0.configd"])
@pytest.mark.parametrize(
    "command",
    [
        {"authenticate": 1, "mechanism": X509},
        {"hello": 1, "speculativeAuthenticate": {"authenticate": 1, "mechanism": X509, "db": "$external"}},
        {"hello": 1, "speculativeAuthenticate": {"authenticate": 1, "mechanism": X509}},
    ],
)
def test_nobody_logs_in_with_the_certificate_of_a_daemon(
    secured: RunningCluster, process: str, command: dict[str, Any]
) -> None:
    """The daemon's own connection to its mongod has it."""
    with secured.direct(process, username=None) as client:
        if "hello" in command:
            assert "speculativeAuthenticate" not in client["$external"].command(command)
        else:
            assert refusal(client, "$external", command)[0] == 18
        assert client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == []


def rotate_by_command(cluster: RunningCluster, process: str) -> None:
    """Send a process the command to reload its certificates, which it may refuse."""
    with cluster.direct(process) as client, suppress(OperationFailure):
        client.admin.command("rotateCertificates")


def rotate_by_signal(cluster: RunningCluster, process: str) -> None:
    """As above."""
    cluster.local.kill(process, SIGHUP)


@pytest.mark.parametrize(
    ("process", "rotate"),
    [(process, rotate) for process in PROCESSES[:3] for rotate in (rotate_by_command, rotate_by_signal)],
)
def test_certificates_are_rotated(
    secured: RunningCluster, process: str, rotate: Callable[[RunningCluster, str], None]
) -> None:
    """Rotation of a shard or config daemon's certificates and of its mongod's."""
    files = files_of(secured)
    name, _, role = process.rpartition(".")
    both = [process] if role.isdecimal() else [process, f"{name}.mongod"]
    addresses = [secured.address(each) for each in both]
    before = [certificate_of(address, secured) for address in addresses]
    whole = files.server_file.read_text()
    complaint = "the old ones stay in use" if role.isdecimal() else "did not rotate its certificates"
    failures = secured.log(process).count(complaint)
    with secured.direct(process) as standing:
        standing.admin.command("ping")
        files.server_file.write_text("not a certificate")
        rotate(secured, process)
        if role.isdecimal() or rotate is rotate_by_signal:  # else it is the mongod that refuses, and the client knows
            eventually(lambda: secured.log(process).count(complaint) > failures, what="it says so")
        assert [certificate_of(address, secured) for address in addresses] == before
        files.server_file.unlink()
        files.create()
        assert whole != files.server_file.read_text()
        rotate(secured, process)
        # The processes of a router do so one after the other.
        eventually(
            lambda: all(certificate_of(addresses[0], secured) != before[0] for _ in range(8)),
            what="all show the new one",
        )
        assert {certificate_of(address, secured) for address in addresses}.isdisjoint(before)
        standing.admin.command("ping")


def test_a_new_authority_is_trusted_from_the_rotation_on(secured: RunningCluster, tmp_path: Path) -> None:
    newer = Authority(tmp_path, "newer")
    theirs = newer.issue("client.pem", (("O", "guests"), ("CN", "guest")))
    files = (files_of(secured).ca_file, files_of(secured).authorities_file)
    alone = [file.read_bytes() for file in files]

    def who_admits_them() -> list[str]:
        options: dict[str, Any] = {**secured.tls, "tlsCertificateKeyFile": str(theirs.path), **SHORT}
        return [process for process in PROCESSES if is_answered(secured.address(process), options)]

    assert who_admits_them() == []
    try:
        for file, content in zip(files, alone, strict=True):
            file.write_bytes(content + newer.path.read_bytes())
        for process in PROCESSES[:3]:
            rotate_by_signal(secured, process)
        eventually(lambda: who_admits_them() == list(PROCESSES), what="all trust the newer authority too")
    finally:
        for file, content in zip(files, alone, strict=True):
            file.write_bytes(content)
        for process in PROCESSES[:3]:
            rotate_by_signal(secured, process)
    eventually(lambda: who_admits_them() == [], what="all trust the first ones alone")


def test_no_client_comes_near_a_mongod(secured: RunningCluster) -> None:
    """A mongod's test commands need no log-in."""
    admitted = [process for process in PROCESSES if is_answered(secured.address(process), {**secured.tls, **SHORT})]
    assert admitted == ["router.0", "shard0.0.shardd", "config.0.configd"]


def is_answered(address: str, options: dict[str, Any]) -> bool:
    """Whether a client gets in that has not logged in."""
    with Client(f"mongodb://{address}/", directConnection=True, **options) as client:
        try:
            return bool(client.admin.command("ping"))
        except ConnectionFailure:
            return False


def test_a_broken_file_is_an_error_of_the_command(secured: RunningCluster, mongod: str) -> None:
    files = files_of(secured)
    whole = files.server_file.read_text()
    files.server_file.write_text("not a certificate")
    try:
        with (
            secured.direct("router.0") as router,
            Client(
                f"mongodb://{mongod}/", directConnection=True, username="root", password="pencil", **secured.tls
            ) as plain,
        ):
            codes = [refusal(client, "admin", {"rotateCertificates": 1})[0] for client in (router, plain)]
    finally:
        files.server_file.write_text(whole)
    assert codes == [140, 140]
