"""The console's libraries equal npm's and have their licences, and the API's document lists its routes."""

import asyncio
import json
import re
from itertools import combinations
from math import dist
from operator import mul
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, Final

import pytest
from starlette.routing import Route

from shardwright.console.api import ENDPOINTS
from shardwright.console.app import Console, open_api
from shardwright.console.pages import Renderer
from shardwright.console.settings import STATIC, TEMPLATES, Settings
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
    documented = {
        (path, method.upper()) for path, methods in open_api("1", "name")["paths"].items() for method in methods
    }
    routed = {
        (route.path, method)
        for route in console.routes()
        if isinstance(route, Route) and route.path.startswith("/api/") and route.path != "/api/openapi.json"
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert documented == routed
    assert json.dumps(open_api("1", "name"))


QUERIES: Final[dict[str, dict[str, object]]] = {
    "collection": {"ns": NAMESPACE},
    "chunk-map": {"ns": NAMESPACE},
    "heat-map": {"ns": NAMESPACE},
    "chunks": {"ns": NAMESPACE},
    "dry-run": {"action": "drain-shard", "shard": "shard0"},
}


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.method == "GET"], ids=lambda each: each.path)
def test_a_reply_has_exactly_the_documented_fields(browser: Browser, endpoint: Any) -> None:  # noqa: ANN401
    assert browser.api(endpoint.path, **QUERIES.get(endpoint.path, {})).keys() == endpoint.returns.keys()


def test_the_document_is_served(browser: Browser) -> None:
    assert browser.get("/api/openapi.json").document["openapi"].startswith("3.1")


# Vision without one kind of cone, as matrices for linear sRGB (Machado, Oliveira and Fernandes 2009, severity 1).
SEEN: Final = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
_TO_XYZ: Final = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE: Final = (0.95047, 1.0, 1.08883)
DIFFERENCE_MIN: Final = 9.0
"""Minimum distance in CIELAB, where 2 is barely noticeable."""


def colours(name: str) -> list[list[str]]:
    """Return the colours of a scale on light and on dark pages, which override some of the light ones."""
    light, _, dark = (
        (STATIC / "console.css").read_text(encoding="utf-8").partition("@media (prefers-color-scheme: dark)")
    )
    default = dict(re.findall(rf"--{name}(\d): (#[0-9a-f]{{6}});", light))
    on_dark = default | dict(re.findall(rf"--{name}(\d): (#[0-9a-f]{{6}});", dark))
    return [[found[number] for number in sorted(found)] for found in (default, on_dark)]


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """Return a colour in CIELAB, as seen with a kind of vision."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    seen = [min(1.0, max(0.0, sum(map(mul, row, linear)))) for row in SEEN[vision]]
    relative = [sum(map(mul, row, seen)) / white for row, white in zip(_TO_XYZ, _WHITE, strict=True)]
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in relative)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", SEEN)
@pytest.mark.parametrize("name", ["c", "age", "heat"])
def test_colours_of_a_scale_differ_for_everyone(name: str, vision: str) -> None:
    for scale in colours(name):
        assert len(scale) in (6, 8)
        seen = [lab(colour, vision) for colour in scale]
        assert min(dist(*pair) for pair in combinations(seen, 2)) > DIFFERENCE_MIN
        if name != "c":
            lightness = [each[0] for each in seen]
            assert lightness in (sorted(lightness), sorted(lightness, reverse=True))


def test_templates_are_loaded_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = tmp_path / "templates"
    copytree(TEMPLATES, templates)
    monkeypatch.setattr("shardwright.console.pages.TEMPLATES", templates)
    renderer = Renderer(Settings("mongodb://127.0.0.1:1"))
    rmtree(templates)
    page = asyncio.run(renderer.page("error.html", "Error", None, error="no router"))
    assert b"No router" in page.body
