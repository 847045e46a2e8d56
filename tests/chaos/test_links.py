"""The proxies between daemons, each in front of an echo server."""

import gc
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.links import Fault, Links
from tests.integration.waiting import eventually

PAIR: Final = ("router.0", "shard0.0.shardd")
ATTEMPTS_TO_LEAK: Final = 10
SECONDS_MAX: Final = 10.0
MOMENT: Final = 0.1
"""Seconds without data after which a link counts as silent."""


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


@contextmanager
def linked(tmp_path: Path) -> Iterator[tuple[Links, Path]]:
    """A running set of links, and the socket of the one from `PAIR`."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        directories = {name: tmp_path / name for name in PAIR}
        for directory in directories.values():
            directory.mkdir()
        links = Links()
        with links.serving(directories, {"router.0": "127.0.0.1:1", "shard0.0.shardd": address}):
            assert links.pairs == [PAIR]
            yield links, directories["router.0"] / f"{address}.sock"
        server.shutdown()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[Links, Path]]:
    with linked(tmp_path) as running:
        yield running


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS_MAX)
        client.connect(str(path))
        yield client


def test_a_whole_link_passes_everything_on(link: tuple[Links, Path]) -> None:
    with connected(link[1]) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"one"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""


def test_a_silent_link_delivers_late(link: tuple[Links, Path]) -> None:
    with connected(link[1]) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"one"
        with link[0].harmed(*PAIR, Fault.SILENT):
            client.sendall(b"two")
            client.settimeout(MOMENT)
            with pytest.raises(TimeoutError):
                client.recv(100)
        client.settimeout(SECONDS_MAX)
        assert client.recv(100) == b"two"


def test_a_broken_link_ends_connections_and_lets_none_in(link: tuple[Links, Path]) -> None:
    with connected(link[1]) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"one"
        with link[0].harmed(*PAIR, Fault.BROKEN):
            assert is_ended(client)
            with connected(link[1]) as another:
                assert is_ended(another)
    with connected(link[1]) as healed:
        healed.sendall(b"three")
        assert healed.recv(100) == b"three"


def test_a_slow_link_delivers_all_the_same(link: tuple[Links, Path]) -> None:
    with connected(link[1]) as client, link[0].harmed(*PAIR, Fault.SLOW):
        client.sendall(b"one")
        assert client.recv(100) == b"one"


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_no_socket_stays_open_when_links_end_while_connections_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclosed: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda fault: unclosed.append(str(fault.exc_value)))
    clients: list[socket.socket] = []
    arriving = threading.Event()

    def connect_until_refused(path: Path) -> None:
        while True:
            client = socket.socket(socket.AF_UNIX)
            clients.append(client)
            try:
                client.connect(str(path))
            except OSError:
                return
            arriving.set()

    for attempt in range(ATTEMPTS_TO_LEAK):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        arriving.clear()
        with linked(directory) as (_, path):
            thread = threading.Thread(target=connect_until_refused, args=(path,))
            thread.start()
            assert arriving.wait(SECONDS_MAX)
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    for client in clients:
        client.close()
    gc.collect()
    assert not unclosed


def is_ended(client: socket.socket) -> bool:
    def ended() -> bool:
        try:
            return client.recv(100) == b""
        except ConnectionError:
            return True

    return eventually(ended, within=SECONDS_MAX)
