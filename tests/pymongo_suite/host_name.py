"""A plugin of pytest for the suite: the host ``server``, for which the suite has no certificate, is this machine.

The suite asks for a line in ``/etc/hosts``, and skips tests of host names without it.
"""

import socket
from typing import Any, Final

import pytest

NAME: Final = "server"
ADDRESS: Final = "127.0.0.1"

_getaddrinfo: Final = socket.getaddrinfo
_gethostbyname: Final = socket.gethostbyname


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Have the name looked up here from now on; the suite does that when its conftest is loaded."""
    socket.getaddrinfo = _address_info
    socket.gethostbyname = _host_by_name


def _address_info(host: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the library's
    return _getaddrinfo(ADDRESS if host == NAME else host, *arguments, **options)


def _host_by_name(hostname: str) -> str:
    return ADDRESS if hostname == NAME else _gethostbyname(hostname)
