"""Every page in a real browser, in a wide window and in a narrow one; the pictures of the documentation.

The pictures are in `build/console`; wide ones in the directory that ``CONSOLE_IMAGES`` names (``make console-images``).
"""

import os
import shutil
import struct
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from tests.console.browser import RunningConsole
from tests.console.conftest import NAMESPACE
from tests.local_cluster import RunningCluster

CHROMIUM: Final = shutil.which("chromium")
BUILD: Final = Path(__file__).parents[2] / "build" / "console"
IMAGES: Final = Path(os.environ.get("CONSOLE_IMAGES", BUILD))
WIDE: Final = (1280, 900)
NARROW: Final = (500, 900)
"""Chromium has no narrower windows."""
SECONDS_MAX: Final = 240

PAGES: Final = {
    "overview": "/",
    "collections": "/collections",
    "collection": f"/collection?{urlencode({'ns': NAMESPACE})}",
    "chunks": f"/chunks?{urlencode({'ns': NAMESPACE})}",
    "heat": f"/heat?{urlencode({'ns': NAMESPACE})}",
    "operations": "/operations",
    "balancer": "/balancer",
    "security": "/security",
    "why": f"/why?{urlencode({'text': 'db.orders.find({ customer: { $gte: 100, $lt: 200 } })', 'db': 'shop'})}",
}


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.fixture(scope="module")
def heated(open_console: RunningConsole, cluster: RunningCluster) -> RunningConsole:
    """The console with an hour of numbers: one range that is read, and a place of writing that moves on."""
    now = datetime.now(UTC)
    with cluster.direct("config.0.mongod") as config:
        config.config.keyStatistics.insert_many(
            {
                "at": now - timedelta(minutes=minute),
                "seconds": 60,
                "shard": "shard0",
                "member": "",
                "collections": [{"ns": NAMESPACE, "ranges": [part(low, minute) for low in range(0, 400, 10)]}],
            }
            for minute in range(1, 60)
        )
    return open_console


def part(low: int, minute: int) -> dict[str, Any]:
    reads = 100 + (20_000 if 120 <= low < 160 and 15 < minute < 40 else 0) + (3_000 if low >= 300 else 0)
    writes = 8_000 if low // 10 == (60 - minute) * 2 // 3 else 20
    return {
        **{"min": {"customer": low}, "max": {"customer": low + 10}},
        **{
            "reads": reads + writes // 4,
            "writes": writes,
            "documents": reads + writes,
            "bytes": 300 * (reads + writes),
        },
    }


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("window", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_drawn(heated: RunningConsole, tmp_path: Path, page: str, window: tuple[int, int]) -> None:
    width, height = window
    path = IMAGES / f"console-{page}.png" if window == WIDE else BUILD / f"console-{page}-narrow.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={tmp_path}", f"--window-size={width},{height}", f"--screenshot={path}"),
            heated.url.rstrip("/") + PAGES[page],
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    png = path.read_bytes()
    assert size_of(png) == window
    assert len(png) > 10_000, "an empty page"
