"""Each mode of TLS of a daemon compared with a mongod with the same options: the served and the refused clients."""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import bson
import pytest

from shardwright.deploy.ports import PortReservation
from shardwright.wire.message import op_msg
from tests.certificates import Authority
from tests.integration.waiting import eventually

HELLO: Final = op_msg(bson.encode({"hello": 1, "$db": "admin"}), request_id=1)
SECONDS_MAX: Final = 10.0


class Parties:
    """The authorities and certificates of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("server.pem")
        (directory / "other").mkdir()
        stranger = Authority(directory / "other", "stranger")
        revoked = self.authority.issue("revoked.pem")
        self.authority.revoke(revoked)
        self.revocations = self.authority.revocation_list("revoked.crl")
        self.clients: dict[str, Path | None] = {
            "plain": None,
            "no certificate": None,
            "certificate": self.authority.issue("client.pem", (("O", "clients"), ("CN", "client"))).path,
            "expired": self.authority.issue("expired.pem", days=(-10, -1)).path,
            "revoked": revoked.path,
            "stranger": stranger.issue("stranger.pem").path,
        }


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties(tmp_path_factory.mktemp("parties"))


@contextmanager
def running(words: list[str]) -> Iterator[int]:
    """Run a server on a port, which is added to its options."""
    with PortReservation() as ports:
        port = ports.hold_free()
    process = subprocess.Popen([*words, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_listening() -> bool:
        assert process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(is_listening, what="the server listens")
        yield port
    finally:
        process.terminate()
        process.wait()


def is_answered(parties: Parties, client: str, port: int) -> bool:
    """Whether a client gets a reply to its hello."""
    deadline = time.monotonic() + SECONDS_MAX
    try:
        with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as plain:
            if client == "plain":
                plain.sendall(HELLO)
                return bool(plain.recv(1))
            context = ssl.create_default_context(cafile=parties.authority.path)
            if (path := parties.clients[client]) is not None:
                context.load_cert_chain(path)
            with context.wrap_socket(plain, server_hostname="localhost") as stream:
                stream.sendall(HELLO)
                return bool(stream.recv(1))
    except OSError:
        assert time.monotonic() < deadline, "it hangs"
        return False


def kebab(name: str) -> str:
    """Our name of a mongod's option."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name.replace("CRL", "Crl"))


CASES: Final = [
    ("disabled", ()),
    ("allow", ()),
    ("prefer", ("--tlsAllowConnectionsWithoutCertificates",)),
    ("require", ()),
    ("require", ("--tlsCRLFile",)),
]


@pytest.mark.parametrize(("mode", "added"), CASES)
def test_who_is_answered(
    parties: Parties, tmp_path: Path, mongod_binary: str, mode: str, added: tuple[str, ...]
) -> None:
    files = ("--tlsCertificateKeyFile", str(parties.server.path), "--tlsCAFile", str(parties.authority.path))
    given = [] if mode == "disabled" else [*files, *added]
    if "--tlsCRLFile" in given:
        given.append(str(parties.revocations))
    ours = [kebab(word.replace("CA", "Ca")) if word.startswith("--") else word for word in given]
    theirs = ["--tlsMode", mode if mode == "disabled" else f"{mode}TLS", *given]
    toy = [sys.executable, "-m", "tests.daemon.toy_daemon", "--tls-mode", mode, *ours]
    mongod = [mongod_binary, "--dbpath", str(tmp_path), "--nounixsocket", *theirs]
    with running(toy) as port, running(mongod) as mongod_port:
        answered = {client: is_answered(parties, client, port) for client in parties.clients}
        assert answered == {client: is_answered(parties, client, mongod_port) for client in parties.clients}
    assert any(answered.values())
