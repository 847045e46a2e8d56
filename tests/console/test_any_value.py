"""Values that pymongo refuses by default are shown, and can be used as bounds."""

import json
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from shardwright.console.any_value import value_of
from shardwright.console.pages import absolute, extended_json, time_tag
from shardwright.console.shell_syntax import document, shell_text
from tests.console.conftest import Closed
from tests.local_cluster import shardwright

LATE: Final = DatetimeMS(300_000_000_000_000)
"""A date in the year 11476, beyond Python's last year."""

NOT_TEXT: Final = RawBSONDocument(bson.encode({"name": "AAAA"}).replace(b"AAAA", b"\xff\xfeAA"))


@pytest.mark.parametrize("value", [LATE, DatetimeMS(-(2**62)), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)])
def test_each_date_can_be_read_again(value: Any) -> None:  # noqa: ANN401 - a date
    assert document(shell_text(value)) == value
    assert value_of(extended_json({"at": value})) == {"at": value}


def test_a_date_beyond_the_last_year_is_shown() -> None:
    assert "300000000000000" in time_tag(LATE)
    assert "300000000000000" in absolute(LATE)


PAGES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/collection", {}),
    ("/chunks", {}),
    ("/api/chunks", {}),
    ("/api/chunk-map", {}),
    ("/api/chunk-map", {"back": 1}),
    ("/heat", {}),
    ("/balancer", {"ns": None}),
    ("/api/balancer", {"ns": None}),
    ("/api/changes", {}),
)


@pytest.mark.parametrize(("name", "middle"), [("at", {"at": LATE}), ("name", NOT_TEXT)])
def test_a_bound_of_any_value_is_shown_and_moved(closed: Closed, name: str, middle: Any) -> None:  # noqa: ANN401
    namespace = f"shop.odd_{name}"
    browser = closed.browser("manager")
    with closed.cluster.client() as client:
        client.admin.command("shardCollection", namespace, key={name: 1})
        client.admin.command("split", namespace, middle=middle)
        try:
            for path, query in PAGES:
                answer = browser.get(path, **{"ns": namespace, **query})
                assert answer.status == 200, (path, answer.text)
            text = f"db.odd_{name}.find({{ {name}: 1 }})"
            assert browser.get("/why", text=text, db="shop").status == 200
            if name == "at":
                chunk = json.loads(browser.get("/api/chunks", ns=namespace).text)["chunks"][1]
                to = "shard1" if chunk["shard"] == "shard0" else "shard0"
                bounds = {each: json.dumps(chunk[each]) for each in ("min", "max")}
                assert "300000000000000" in browser.get("/act", action="move-chunk", ns=namespace, to=to, **bounds).text
                assert browser.post("/act", action="move-chunk", ns=namespace, to=to, **bounds).status == 303
                assert json.loads(browser.get("/api/chunks", ns=namespace).text)["chunks"][1]["shard"] == to
                chunks = json.loads(browser.get("/api/chunks", ns=namespace, **{"from": bounds["min"]}).text)["chunks"]
                assert len(chunks) == 1
            drawn = shardwright("map", namespace, "--dir", str(closed.cluster.directory))
            assert "2 chunks" in drawn.stdout, drawn.stderr
        finally:
            client.shop.drop_collection(f"odd_{name}")


def test_an_operation_with_any_value_hides_no_other(closed: Closed) -> None:
    with closed.cluster.client() as client:

        def read() -> None:
            with suppress(PyMongoError):
                list(client.shop.orders.find({"x": {"$ne": LATE}, "$where": "sleep(20) || true"}))

        thread = threading.Thread(target=read)
        thread.start()
        browser = closed.browser("monitor")
        seen = 0
        deadline = time.monotonic() + 60
        while thread.is_alive() or not seen:
            assert time.monotonic() < deadline
            found = browser.get("/api/current-operations")
            assert found.status == 200, found.text
            seen += any(each["ns"] == "shop.orders" for each in json.loads(found.text)["operations"])
            for path in ("/operations", "/balancer", "/chunks?ns=shop.orders"):
                assert browser.get(path).status == 200
        thread.join()
