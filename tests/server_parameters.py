"""Server parameters, changed for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.local_cluster import Client


@contextmanager
def server_parameter(server: Client, name: str, value: object) -> Iterator[None]:
    """A parameter of one server has another value during the block."""
    before = server.admin.command({"setParameter": 1, name: value})["was"]
    try:
        yield
    finally:
        server.admin.command({"setParameter": 1, name: before})
