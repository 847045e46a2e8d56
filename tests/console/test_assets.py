"""The console's libraries equal npm's and have their licences, and the API's document lists its routes."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.routing import Route

from shardwright.console.api import ENDPOINTS, open_api
from shardwright.console.app import Console
from shardwright.console.options import STATIC, TEMPLATES
from shardwright.console.settings import Settings
from tests.console.browser import Browser
from tests.console.conftest import NAMESPACE

MODULES: Final = Path(__file__).parents[2] / "node_modules"

VENDORED: Final = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "htmx.LICENSE": "htmx.org/LICENSE",
    "uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
    "uPlot.LICENSE": "uplot/LICENSE",
}
OWN: Final = {"console.css", "console.js", "icon.svg"}


@pytest.mark.parametrize("name", VENDORED)
def test_a_library_is_the_one_of_the_lock(name: str) -> None:
    assert (STATIC / name).read_bytes() == (MODULES / VENDORED[name]).read_bytes()


def test_nothing_else_is_served() -> None:
    assert {each.name for each in STATIC.iterdir()} == OWN | VENDORED.keys()


@pytest.mark.parametrize(
    "path", [*(STATIC / name for name in sorted(OWN)), *sorted(TEMPLATES.iterdir())], ids=lambda path: path.name
)
def test_own_files_name_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in text
    assert "https:" not in text
    assert path.suffix != ".html" or " style=" not in text


def test_the_document_of_the_api_has_all_routes() -> None:
    console = Console(Settings("mongodb://127.0.0.1:1"))
    documented = {(path, method.upper()) for path, methods in open_api("1")["paths"].items() for method in methods}
    routed = {
        (route.path, method)
        for route in console.routes()
        if isinstance(route, Route) and route.path.startswith("/api/") and route.path != "/api/openapi.json"
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert documented == routed
    assert json.dumps(open_api("1"))


QUERIES: Final[dict[str, dict[str, object]]] = {
    "collection": {"ns": NAMESPACE},
    "chunk-map": {"ns": NAMESPACE},
    "heat-map": {"ns": NAMESPACE},
    "chunks": {"ns": NAMESPACE},
}


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.method == "GET"], ids=lambda each: each.path)
def test_a_reply_has_exactly_the_documented_fields(browser: Browser, endpoint: Any) -> None:  # noqa: ANN401
    assert browser.api(endpoint.path, **QUERIES.get(endpoint.path, {})).keys() == endpoint.returns.keys()


def test_the_document_is_served(browser: Browser) -> None:
    assert browser.get("/api/openapi.json").document["openapi"].startswith("3.1")
