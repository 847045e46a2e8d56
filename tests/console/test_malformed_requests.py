"""Malformed requests are answered as the client's fault, before the log-in too."""

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from shardwright.console.any_value import value_of
from shardwright.console.shell_syntax import SyntaxFault, parsed
from tests.console.browser import Browser
from tests.console.conftest import NAMESPACE, Closed

MALFORMED: Final = (
    '{"customer": {"$oid": "zz"}}',
    '{"customer": {"$uuid": "zz"}}',
    '{"customer": {"$numberDecimal": "zz"}}',
    '{"customer": {"$binary": {}}}',
    '{"customer": {"$timestamp": 5}}',
    '{"customer": {"$timestamp": {"t": -1, "i": 0}}}',
    '{"customer": 99999999999999999999}',
    '{"customer": {"$regularExpression": {"pattern": "a\\u0000", "options": ""}}}',
    '{"a\\u0000b": 1}',
    '{"customer": "\\ud800"}',
    '{"customer": ' + "[" * 3000 + "]" * 3000 + "}",
    "[" * 100_000,
)


@pytest.mark.parametrize("text", MALFORMED)
def test_a_value_that_cannot_be_sent_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a value in Extended JSON"):
        value_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "db.orders.find({a: 99999999999999999999999})",
        "db.orders.find({a: NumberLong('99999999999999999999')})",
        "db.orders.find({a: {$numberDecimal: 'zz'}})",
        "db.orders.find({a: NumberDecimal('zz')})",
        "db.orders.find({a: Timestamp(-1, -1)})",
        "db.orders.find({a: BinData(300, 'AA')})",
        "db.orders.find({a: Date(1e300)})",
        r"db.orders.find({a: '\ud800'})",
        r"db.orders.find({'a\0': 1})",
        "db.orders.find(" + "Date(" * 20_000,
    ],
)
def test_a_command_that_cannot_be_sent_is_refused(text: str) -> None:
    with pytest.raises(SyntaxFault):
        parsed(text, "shop")


def send(browser: Browser, path: str, body: object) -> int:
    """Send JSON with the browser's cookies, and return the status."""
    parts = urlsplit(browser.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=90)
    headers = {"Content-Type": "application/json"}
    headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"\xff",
        {"next": "/\ud800", "name": "x", "password": "y"},
        {"next": "/", "name": "\ud800", "password": "y"},
    ],
)
def test_a_log_in_that_is_not_text_is_refused(closed: Closed, body: object) -> None:
    assert send(closed.console.browser(), "/log-in", body) == 400


def test_malformed_parameters_are_refused(closed: Closed) -> None:
    browser = closed.browser("manager")
    csrf = browser.csrf
    for text in MALFORMED[:-1]:
        assert browser.get("/api/chunks", **{"ns": NAMESPACE, "from": text}).status == 400, text
        given: dict[str, Any] = {"action": "split-chunk", "ns": NAMESPACE, "min": text, "max": "{}"}
        assert browser.get("/act", **given).status == 400, text
        zone = {"action": "assign-zone", "ns": NAMESPACE, "min": text, "max": '{"customer": 1}', "zone": "z"}
        assert browser.get("/act", **zone).status == 400, text
    for text in ("db.orders.find({a: 99999999999999999999})", "db['a\\0'].find()", "db.orders.find({a: '\\ud800'})"):
        assert browser.post("/api/explain", csrf=csrf, text=text, db="shop").status in (400, 409), text
    assert browser.post("/api/explain", csrf=csrf, text="db.orders.find()", db="a.b\0").status in (400, 409)
    assert browser.get("/api/chunks", ns="shop.\0").status == 404
    assert send(browser, "/api/act", {"csrf": "\ud800"}) == 400
    assert "Could not answer" not in closed.console.log.read_text()
