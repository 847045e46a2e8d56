"""Pictures of every page in a wide window and in a narrow one, light and dark; some are in the documentation.

They are in `build/console`; wide, light ones in the directory that ``CONSOLE_IMAGES`` names (``make console-images``).
"""

import json
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest

from tests.console.browser import RunningConsole, running_console
from tests.console.chromium import Chromium, Tab, needs_chromium
from tests.console.conftest import NAMESPACE, Load
from tests.local_cluster import RunningCluster

BUILD: Final = Path(__file__).parents[2] / "build" / "console"
IMAGES: Final = Path(os.environ.get("CONSOLE_IMAGES", BUILD))
WIDE: Final = (1280, 900)
NARROW: Final = (390, 844)

PAGES: Final = {
    "overview": "/",
    "collections": "/collections",
    "collection": f"/collection?{urlencode({'ns': NAMESPACE})}",
    "chunks": f"/chunks?{urlencode({'ns': NAMESPACE})}",
    "heat": f"/heat?{urlencode({'ns': NAMESPACE})}",
    "operations": "/operations",
    "balancer": "/balancer",
    "dry-run": f"/act?{urlencode({'action': 'drain-shard', 'shard': 'shard1'})}",
    "security": "/security",
    "why": f"/why?{urlencode({'text': 'db.orders.find({ customer: { $gte: 100, $lt: 200 } })', 'db': 'shop'})}",
}


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@needs_chromium
@pytest.mark.parametrize("page", [each for each in PAGES if each != "operations"])
def test_a_page_is_drawn(heated: RunningConsole, chromium: Chromium, page: str) -> None:
    draw(Tab(chromium, heated.url), page)


@needs_chromium
def test_operations_are_drawn(
    cluster: RunningCluster, load: Load, chromium: Chromium, tmp_path: Path, heated: RunningConsole
) -> None:
    """The console has samples of this load only, further apart if the pictures are for the documentation."""
    assert load
    assert heated
    seconds, samples = ("2", 20) if IMAGES != BUILD else ("0.5", 4)
    with running_console(cluster.directory, tmp_path / "console.log", "--sample-seconds", seconds) as console:
        tab = Tab(chromium, console.url)
        tab.open(PAGES["operations"])
        tab.wait(f"JSON.parse(document.querySelector('#chart-data').dataset.charts).rates.at.length >= {samples}")
        charts = json.loads(tab.run("document.querySelector('#chart-data').dataset.charts"))
        assert all(before < at for before, at in pairwise(charts["rates"]["at"]))
        assert charts["rates"]["names"][0] == "operations"
        assert all(rate > 0 for rate in charts["rates"]["values"][0])
        draw(tab, "operations")


def draw(tab: Tab, page: str) -> None:
    """Take the pictures of a page."""
    for window in (WIDE, NARROW):
        for dark in (False, True):
            is_of_docs = window == WIDE and not dark
            name = "".join((f"console-{page}", "" if window == WIDE else "-narrow", "-dark" if dark else "", ".png"))
            path = (IMAGES if is_of_docs else BUILD) / name
            path.unlink(missing_ok=True)
            tab.show(*window, dark=dark)
            tab.open(PAGES[page])
            if page == "operations":
                tab.wait("document.querySelectorAll('[data-chart] canvas').length === 2")
            tab.screenshot(path, whole=not is_of_docs)
            png = path.read_bytes()
            width, height = size_of(png)
            assert width == window[0]
            assert height == window[1] if is_of_docs else height >= window[1]
            assert len(png) > 10_000, "an empty page"
