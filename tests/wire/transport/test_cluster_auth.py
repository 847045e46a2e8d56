"""Modes in which the processes of a cluster recognise each other, and who counts as a member by a certificate."""

from pathlib import Path
from typing import Any

import pytest
import trio

from shardwright.wire.errors import CommandError, ConnectFailedError
from shardwright.wire.request import Request
from shardwright.wire.tls import ProcessTls, TlsConfigurationError, TlsMode, TlsSettings, organization_in_name
from shardwright.wire.transport.client import Connection, handshake_document
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import ClusterAuth, ClusterAuthMode
from tests.certificates import Authority
from tests.transports import new_transport
from tests.wire.transport.serving import serving

KEYS = ("a" * 60,)
SERVERS = (("O", "shop"), ("OU", "servers"))
NEED_TLS = "need to enable SSL for outgoing connections"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue("server.pem", (*SERVERS, ("CN", "server")))
    return made


def tls_of(authority: Authority, mode: TlsMode = TlsMode.REQUIRE, **changed: Any) -> ProcessTls:  # noqa: ANN401 - settings
    files = {"certificate_key_file": authority.path.with_name("server.pem"), "ca_file": authority.path}
    if mode is TlsMode.DISABLED:
        return ProcessTls()
    return ProcessTls(TlsSettings(mode=mode, **{**files, **changed}))


@pytest.mark.parametrize(
    ("mode", "tls", "keys", "reason"),
    [
        (ClusterAuthMode.KEY_FILE, TlsMode.REQUIRE, (), "Unable to acquire security key"),
        (ClusterAuthMode.SEND_X509, TlsMode.REQUIRE, (), "Unable to acquire security key"),
        (ClusterAuthMode.SEND_KEY_FILE, TlsMode.DISABLED, KEYS, "need to enable TLS via the tlsMode flag"),
        (ClusterAuthMode.X509, TlsMode.DISABLED, (), "need to enable TLS via the tlsMode flag"),
        (ClusterAuthMode.X509, TlsMode.ALLOW, (), "cannot have x.509 cluster authentication in allowTLS mode"),
    ],
)
def test_a_start_without_what_the_mode_needs_is_refused(
    authority: Authority, mode: ClusterAuthMode, tls: TlsMode, keys: tuple[str, ...], reason: str
) -> None:
    """The words are those with which mongod 6.0.5 refuses the same."""
    with pytest.raises(TlsConfigurationError, match=reason):
        ClusterAuth(tls_of(authority, tls), mode, keys)


@pytest.mark.parametrize("changed", [{"allows_invalid_certificates": True}, {"certificate_key_file": "nobody.pem"}])
def test_certificates_by_which_nobody_is_recognised_are_refused(authority: Authority, changed: dict[str, Any]) -> None:
    authority.issue("nobody.pem", (("CN", "nobody"),))
    if "certificate_key_file" in changed:
        changed = {"certificate_key_file": authority.path.with_name("nobody.pem")}
    tls = tls_of(authority, **changed)
    with pytest.raises(TlsConfigurationError):
        ClusterAuth(tls, ClusterAuthMode.X509)


def test_the_mode_goes_one_step_forward_at_a_time(authority: Authority) -> None:
    auth = ClusterAuth(tls_of(authority), keys=KEYS)
    for mode in ("sendKeyFile", "sendX509", "x509"):
        for wrong in {"keyFile", "sendKeyFile", "sendX509", "x509"} - {mode}:
            with pytest.raises(CommandError) as caught:
                auth.change_mode(wrong)
            assert caught.value.code == 5579202
            message = f"Illegal state transition for clusterAuthMode from '{auth.mode_name}' to '{wrong}'"
            assert caught.value.message == message
        auth.change_mode(mode)
        assert auth.mode_name == mode
    with pytest.raises(CommandError, match="Invalid clusterAuthMode '5'"):
        auth.change_mode(5)


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.ALLOW])
def test_a_process_that_dials_plain_cannot_leave_its_mode(authority: Authority, mode: TlsMode) -> None:
    auth = ClusterAuth(tls_of(authority, mode), keys=KEYS)
    with pytest.raises(CommandError, match=NEED_TLS):
        auth.change_mode("sendKeyFile")


@pytest.mark.parametrize(
    ("subject", "is_member"),
    [
        ((*SERVERS, ("CN", "other")), True),
        ((("OU", "servers"), ("O", "shop")), True),
        ((("O", "shop"), ("OU", "servers"), ("OU", "servers"), ("CN", "x")), False),
        ((("O", "shop"), ("CN", "x")), False),
        ((("O", "shop"), ("OU", "Servers"), ("CN", "x")), False),
        ((("O", "new"), ("OU", "servers"), ("CN", "x")), True),
        ((("CN", "x"),), False),
    ],
)
def test_members_are_told_by_their_organization(
    authority: Authority, subject: tuple[tuple[str, str], ...], is_member: bool
) -> None:
    """The verdicts equal mongod 6.0.5's on such certificates."""
    long_names = {"O": "organizationName", "OU": "organizationalUnitName", "CN": "commonName"}
    tls = tls_of(authority, members_too=organization_in_name("O=new,OU=servers"))
    assert tls.is_member(tuple(((long_names[name], value),) for name, value in subject)) is is_member


@pytest.mark.parametrize("text", ["bad", "CN=somebody"])
def test_an_override_names_an_organization(text: str) -> None:
    with pytest.raises(ValueError, match=r"distinguished name|at least one O, OU, or DC component"):
        organization_in_name(text)


@pytest.mark.parametrize(("subject", "is_trusted"), [((*SERVERS, ("CN", "b")), True), ((("O", "clients"),), False)])
def test_a_server_has_to_be_a_member_too(
    authority: Authority, subject: tuple[tuple[str, str], ...], is_trusted: bool
) -> None:
    """Nothing is sent to another holder of a certificate for the host but a hello."""
    received: list[str] = []

    async def answer(client: ClientConnection, request: Request) -> dict[str, Any]:
        received.append(request.name)
        return {"ok": 1.0}

    async def main() -> None:
        async with serving(answer, server) as served:
            address = served.address
            if is_trusted:
                (await Connection.open(transport, address, handshake=handshake_document("test"))).close()
            else:
                with pytest.raises(ConnectFailedError, match="does not belong to a member of the cluster"):
                    await Connection.open(transport, address, handshake=handshake_document("test"))

    authority.issue("server.pem", subject)
    server = new_transport(tls=tls_of(authority))
    authority.issue("server.pem", (*SERVERS, ("CN", "server")))
    tls = tls_of(authority)
    transport = new_transport(tls=tls, cluster_auth=ClusterAuth(tls, ClusterAuthMode.X509))
    trio.run(main)
    assert received == (["hello", "authenticate"] if is_trusted else ["hello"])
