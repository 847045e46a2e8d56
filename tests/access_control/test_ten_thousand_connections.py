"""Somebody opens 10,000 connections to a router that takes far fewer, and never logs in."""

import resource
import socket
from collections import deque
from collections.abc import Iterator
from typing import Final

import pytest

from tests.access_control.users import PASSWORD
from tests.credentials import Credentials
from tests.integration.routers import router_of
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, client_of, set_credentials
from tests.wire.raw_connection import op_msg_frame

CONNECTIONS: Final = 10_000
CONNECTIONS_MAX: Final = 1_000
FOR_OTHERS: Final = 500
"""The descriptors of this process that the crowd leaves alone."""
HELLO: Final = op_msg_frame({"hello": 1, "$db": "admin"})


@pytest.fixture(scope="module")
def small(closed: RunningCluster) -> Iterator[str]:
    """The address of a router that takes a thousand clients."""
    config_servers = f"config/{closed.address('config.0.configd')}"
    options = ("--max-connections", str(CONNECTIONS_MAX), *closed.daemon_options)

    def register(address: str) -> None:
        set_credentials(address, Credentials("chief", PASSWORD, "admin"))

    with router_of(config_servers, *options, register=register) as (address, _):
        yield address


@pytest.fixture
def descriptors() -> Iterator[int]:
    """The number of connections that this process can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard - FOR_OTHERS
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections(client: Client) -> int:
    """Return the number of the router's clients."""
    return int(client.admin.command("serverStatus")["connections"]["current"])


@pytest.mark.parametrize(
    "opening", [pytest.param(b"", id="silent"), pytest.param(HELLO, id="greeting", marks=pytest.mark.exhaustive)]
)
def test_users_get_in_and_stay(small: str, descriptors: int, opening: bytes) -> None:
    host, _, port = small.rpartition(":")
    crowd: deque[socket.socket] = deque()
    with client_of(small) as early, client_of(small) as late:
        early.shop.goods.find_one()
        opened = 0
        try:
            for _ in range(CONNECTIONS):
                if len(crowd) == descriptors:
                    crowd.popleft().close()
                crowd.append(socket.create_connection((host, int(port)), 30))
                crowd[-1].sendall(opening)
                opened += 1
            assert opened == CONNECTIONS
            assert early.shop.goods.find_one() is not None
            assert late.shop.goods.find_one() is not None
            assert connections(early) <= CONNECTIONS_MAX
        finally:
            for each in crowd:
                each.close()
        eventually(lambda: connections(early) < 100, what="the crowd has gone")
