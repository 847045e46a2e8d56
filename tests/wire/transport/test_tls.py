"""TLS of the server and of our own connections: who gets in, and what a broken, slow or silent peer can do."""

import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
import trio
import trio.testing

from shardwright.wire.errors import ConnectFailedError
from shardwright.wire.message import op_msg
from shardwright.wire.request import Request
from shardwright.wire.tls import ProcessTls, TlsConfigurationError, TlsMode, TlsSettings, server_context
from shardwright.wire.transport import accepting
from shardwright.wire.transport.client import Connection, handshake_document
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.transport import Transport
from tests.certificates import Authority, Issued
from tests.transports import new_transport
from tests.wire.transport.serving import RawClient, Serving, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

HELLO = handshake_document("test")
PING = op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1)
LONG_BYTES = 5_000_000


class Files:
    """The files of a cluster."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.issue("server.pem")

    def transport(self, mode: TlsMode = TlsMode.REQUIRE, **changed: Path | bool) -> Transport:
        """Create the transport of a process with these settings."""
        files: dict[str, Any] = {"certificate_key_file": self.server.path, "ca_file": self.authority.path}
        return new_transport(tls=ProcessTls(TlsSettings(mode=mode, **{**files, **changed})))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def answer(client: ClientConnection, request: Request) -> dict[str, Any]:
    """A reply with the subject of the client, and as many bytes as are asked for."""
    document = request.document
    return {
        "subject": repr(client.certificate_subject),
        "text": "x" * document.get("bytes", 0),
        "received": len(document.get("text", "")),
        "ok": 1.0,
    }


def context_of(authority: Authority, issued: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if issued is not None:
        context.load_cert_chain(issued.path)
    return context


async def ask(served: Serving, context: ssl.SSLContext, *, host: str = "localhost") -> dict[str, Any] | None:
    """The answer to one request by another implementation of TLS; None if the server ended the connection."""
    plain = await trio.open_tcp_stream("127.0.0.1", served.port)
    async with trio.SSLStream(plain, context, server_hostname=host, https_compatible=True) as stream:
        client = RawClient(stream)  # type: ignore[arg-type]
        try:
            await client.send(PING)
            frame = await client.receive()
        except trio.BrokenResourceError:
            return None
        return None if frame is None else bson.decode(frame[21:])


async def wait_for_end(client: RawClient) -> None:
    """Read what the server still says, such as an alert, until it closes."""
    with suppress(trio.BrokenResourceError):
        while await client.stream.receive_some():
            pass


async def test_daemons_reach_each_other(files: Files) -> None:
    transport = files.transport()
    async with serving(answer, transport) as served:
        connection = await Connection.open(transport, served.address, handshake=HELLO)
        assert "server" in connection.hello["subject"]
        reply = await connection.command("admin", {"ping": 1, "bytes": LONG_BYTES, "text": "y" * LONG_BYTES})
        assert (len(reply["text"]), reply["received"]) == (LONG_BYTES, LONG_BYTES)
        for number in range(200):
            reply = await connection.command("admin", {"ping": 1, "bytes": number * 700})
            assert len(reply["text"]) == number * 700
        connection.close()


@pytest.mark.parametrize("mode", list(TlsMode))
@pytest.mark.parametrize("is_secured", [True, False])
async def test_a_mode_says_who_gets_in(files: Files, mode: TlsMode, is_secured: bool) -> None:
    transport = new_transport() if mode is TlsMode.DISABLED else files.transport(mode)
    async with serving(answer, transport) as served:
        if is_secured:
            reply = await ask(served, context_of(files.authority, files.server))
            assert (reply is not None) == (mode is not TlsMode.DISABLED)
        else:
            client = await served.connect()
            await client.send(PING)
            if mode is TlsMode.REQUIRE:
                await wait_for_end(client)
            else:
                assert await client.receive() is not None


async def test_clients_need_a_certificate_of_the_authority(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")

    transport = files.transport()
    expired = files.authority.issue("expired.pem", days=(-10, -1))
    async with serving(answer, transport) as served:
        for issued in (None, expired, stranger.issue("stranger.pem")):
            assert await ask(served, context_of(files.authority, issued)) is None
        assert served.server.handshakes_failed == 3
        assert await ask(served, context_of(files.authority, files.server)) is not None


async def test_clients_may_be_let_in_without_certificate_but_not_with_a_wrong_one(files: Files) -> None:
    transport = files.transport(allows_connections_without_certificates=True)
    expired = files.authority.issue("expired.pem", days=(-10, -1))
    async with serving(answer, transport) as served:
        reply = await ask(served, context_of(files.authority))
        assert reply is not None
        assert reply["subject"] == "None"
        assert await ask(served, context_of(files.authority, expired)) is None


async def test_revoked_certificates_are_refused(files: Files) -> None:
    revoked = files.authority.issue("revoked.pem")
    files.authority.revoke(revoked)
    transport = files.transport(crl_file=files.authority.revocation_list("revoked.crl"))
    async with serving(answer, transport) as served:
        assert await ask(served, context_of(files.authority, revoked)) is None
        assert await ask(served, context_of(files.authority, files.server)) is not None


async def test_clients_of_a_cluster_may_have_another_authority(files: Files, tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    users = Authority(tmp_path / "users")
    user = users.issue("user.pem")

    transport = files.transport(cluster_ca_file=users.path, cluster_file=user.path)
    async with serving(answer, transport) as served:
        assert await ask(served, context_of(files.authority, user)) is not None
        assert await ask(served, context_of(files.authority, files.server)) is None
        connection = await Connection.open(transport, served.address, handshake=HELLO)
        connection.close()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("host", "IP address mismatch"),
        ("expired", "certificate has expired"),
        ("authority", "unable to get local issuer certificate|signature failure"),
    ],
)
async def test_servers_are_checked(files: Files, tmp_path: Path, wrong: str, reason: str) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    issued = {
        "host": lambda: files.authority.issue("wrong.pem", hosts=("elsewhere.example",)),
        "expired": lambda: files.authority.issue("wrong.pem", days=(-10, -1)),
        "authority": lambda: stranger.issue("wrong.pem"),
    }[wrong]()

    server, strict = files.transport(), files.transport()
    server.tls.accepting = server_context(replace(server.tls.settings, certificate_key_file=issued.path))
    async with serving(answer, server) as served:
        with pytest.raises(ConnectFailedError, match=reason):
            await Connection.open(strict, served.address, handshake=HELLO)
        if wrong == "host":
            lenient = files.transport(allows_invalid_hostnames=True)
        else:
            lenient = files.transport(allows_invalid_certificates=True)
        connection = await Connection.open(lenient, served.address, handshake=HELLO)
        connection.close()


@pytest.mark.parametrize("beginning", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00" + bytes(40), PING[:9]])
async def test_a_slow_or_cut_handshake_costs_only_its_own_connection(
    files: Files, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS_MAX", 0.3)

    transport = files.transport()
    async with serving(answer, transport) as served:
        slow, cut = await served.connect(), await served.connect()
        if beginning:
            await slow.send(beginning)
            await cut.send(beginning)
        with suppress(trio.BrokenResourceError):
            await cut.stream.send_eof()
        assert await ask(served, context_of(files.authority, files.server)) is not None
        await wait_for_end(cut)
        await wait_for_end(slow)


async def test_strangers_who_begin_handshakes_lock_nobody_out(files: Files) -> None:
    """They displace each other, not clients, and not for good."""

    transport = files.transport()
    async with serving(answer, transport, connections_max=1, handshakes_max=3) as served:
        strangers = [await served.connect() for _ in range(8)]
        for stranger in strangers[:5]:
            await wait_for_end(stranger)
        assert served.server.handshakes_failed == 5
        assert await ask(served, context_of(files.authority, files.server)) is not None
        await wait_for_end(strangers[5])
        assert served.server.connections_refused == 0


async def test_a_client_too_many_is_refused_after_its_handshake(files: Files) -> None:
    transport = files.transport()
    context = context_of(files.authority, files.server)
    async with serving(answer, transport, connections_max=1) as served:
        early = await served.connect()  # is accepted while there is room
        while served.server.connections_created < 1:
            await trio.testing.wait_all_tasks_blocked()
        plain = await trio.open_tcp_stream("127.0.0.1", served.port)
        client = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
        await client.do_handshake()
        await client.send_all(PING)
        assert await client.receive_some()
        late = trio.SSLStream(early.stream, context, server_hostname="localhost", https_compatible=True)
        await late.do_handshake()
        with suppress(trio.BrokenResourceError):
            assert await late.receive_some() == b""
        assert served.server.connections_refused == 1
        await plain.aclose()


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 4096, b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000, b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_garbage_costs_only_its_own_connection(files: Files, garbage: bytes) -> None:
    transport = files.transport()
    async with serving(answer, transport) as served:
        bad = await served.connect()
        await bad.send(garbage)
        await wait_for_end(bad)
        assert served.server.handshakes_failed == 1
        assert await ask(served, context_of(files.authority, files.server)) is not None


async def test_garbage_after_the_handshake_ends_the_connection(files: Files) -> None:
    transport = files.transport()
    async with serving(answer, transport) as served:
        plain = await trio.open_tcp_stream("127.0.0.1", served.port)
        stream = trio.SSLStream(
            plain, context_of(files.authority, files.server), server_hostname="localhost", https_compatible=True
        )
        await stream.do_handshake()
        await plain.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        await served.handler.someone_left.wait()
        assert await ask(served, context_of(files.authority, files.server)) is not None
        await plain.aclose()


async def test_authorities_and_revocations_count_from_the_rotation_on(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    theirs, leaving = other.issue("client.pem"), files.authority.issue("leaving.pem")
    revocations = files.authority.revocation_list("revoked.crl")

    def add(more: Path, to: Path) -> None:
        to.write_bytes(to.read_bytes() + more.read_bytes())

    transport = files.transport(crl_file=revocations)
    async with serving(answer, transport) as served:

        async def admitted() -> list[bool]:
            return [await ask(served, context_of(files.authority, each)) is not None for each in (theirs, leaving)]

        assert await admitted() == [False, True]
        files.authority.revoke(leaving)
        files.authority.revocation_list("revoked.crl")
        add(other.revocation_list("revoked.crl"), to=revocations)
        add(other.path, to=files.authority.path)
        assert await admitted() == [False, True]
        transport.tls.rotate()
        assert await admitted() == [True, False]


async def test_new_connections_get_the_new_certificate(files: Files) -> None:
    transport = files.transport()
    async with serving(answer, transport) as served:
        connection = await Connection.open(transport, served.address, handshake=HELLO)
        renewed = files.authority.issue("server.pem", (("O", "tests"), ("CN", "renewed")))
        transport.tls.rotate()
        assert "server" in (await connection.command("admin", {"ping": 1}))["subject"]
        newer = await Connection.open(transport, served.address, handshake=HELLO)
        assert "renewed" in newer.hello["subject"]
        renewed.path.write_text("no certificate", encoding="utf-8")
        with pytest.raises(TlsConfigurationError, match=r"server\.pem: no certificate"):
            transport.tls.rotate()
        newest = await Connection.open(transport, served.address, handshake=HELLO)
        for each in (connection, newer, newest):
            each.close()
