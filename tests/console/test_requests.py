"""Addresses, cookies and origins of requests, without a cluster."""

import pytest
from starlette.requests import Request

from shardwright.console.app import Fault, check_origin, is_secure, remote_address
from shardwright.console.settings import Settings


def request(headers: dict[str, str], peer: str = "10.0.0.1") -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "client": (peer, 1), "scheme": "http", "path": "/"})


@pytest.mark.parametrize(
    ("proxies", "forwarded", "remote"),
    [
        ((), "192.0.2.1", "10.0.0.1"),
        (("10.0.0.2",), "192.0.2.1", "10.0.0.1"),
        (("10.0.0.1",), "192.0.2.1", "192.0.2.1"),
        (("10.0.0.1",), "203.0.113.9, 192.0.2.1", "192.0.2.1"),
        (("10.0.0.1", "10.0.0.2"), "192.0.2.1, 10.0.0.2", "192.0.2.1"),
        (("10.0.0.1",), "", "10.0.0.1"),
    ],
)
def test_the_address_behind_proxies(proxies: tuple[str, ...], forwarded: str, remote: str) -> None:
    assert remote_address(request({"x-forwarded-for": forwarded}), proxies) == remote


@pytest.mark.parametrize("origin", ["null", "https://elsewhere.example", "http://console.example.elsewhere.example"])
def test_a_log_in_of_another_page_is_refused(origin: str) -> None:
    with pytest.raises(Fault, match="another site"):
        check_origin(request({"host": "console.example", "origin": origin}))


@pytest.mark.parametrize("headers", [{}, {"origin": "https://console.example"}])
def test_a_log_in_of_the_own_page_and_of_a_program_is_accepted(headers: dict[str, str]) -> None:
    check_origin(request({"host": "console.example", **headers}))


@pytest.mark.parametrize(
    ("is_behind_tls", "host", "secure"),
    [
        (False, "console.example", False),
        (True, "console.example", True),
        (True, "console.example:8443", True),
        (True, "localhost:8027", False),
        (True, "[::1]:8027", False),
    ],
)
def test_cookies_are_secure_behind_a_proxy_with_tls(is_behind_tls: bool, host: str, secure: bool) -> None:
    assert is_secure(request({"host": host}), Settings("", is_behind_tls=is_behind_tls)) is secure


def test_each_console_of_a_host_has_its_own_cookie() -> None:
    names = {Settings(uri, port=port).cookie for uri in ("mongodb://a/", "mongodb://b/") for port in (8027, 8028)}
    assert len(names) == 4
