"""axe-core finds nothing on any page: names, roles, headings, landmarks, labels."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.console.browser import Browser
from tests.console.test_pages import HTML, QUERIES

AXE = Path(__file__).with_name("axe.cjs")


def test_axe_finds_nothing(browser: Browser) -> None:
    pages = {path: browser.get(path, **QUERIES.get(path, {})).text for path in HTML}
    pages["/why with an answer"] = browser.post("/why", text="db.orders.find({ customer: 150 })", db="shop").text
    done = subprocess.run(["node", str(AXE)], input=json.dumps(pages), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    assert found.keys() == pages.keys()
    assert {name: each for name, each in found.items() if each} == {}
