"""Debian's chromium without a window, driven over the pipe of its debugging protocol."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

PROGRAM: Final = shutil.which("chromium")
SECONDS_MAX: Final = 120.0
"""Time limit of one step, for a page on a busy machine."""

needs_chromium: Final = pytest.mark.skipif(PROGRAM is None, reason="needs Debian's chromium")

FIRST_PAINT_MS_MAX: Final = 300
_LOADS: Final = 12

_AXE: Final = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
_FIRST_FREE: Final = 10
_KEYS: Final = {"Tab": 9, "Enter": 13}


class Chromium:
    """A running browser."""

    def __init__(self, profile: Path) -> None:
        # The browser reads commands from descriptor 3 and writes answers to 4.
        (commands, self._out), (self._in, answers) = (_high_pipe(), _high_pipe())

        def place() -> None:
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        self._process = subprocess.Popen(
            [str(PROGRAM), *options, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=place,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._received = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(SECONDS_MAX)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        to = {} if session is None else {"sessionId": session}
        message = {"id": self._number, "method": method, "params": parameters, **to}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            found = self._next(deadline)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result

    def wait_event(self, method: str, session: str) -> dict[str, Any]:
        """Return the parameters of the first event of the kind that has not been returned, when it has arrived."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            for each in self.events:
                if each["method"] == method and each.get("sessionId") == session:
                    self.events.remove(each)
                    parameters: dict[str, Any] = each["params"]
                    return parameters
            self._next(deadline)

    def _next(self, deadline: float) -> dict[str, Any]:
        """Read a message; events are kept."""
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "chromium has ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found


def _high_pipe() -> tuple[int, int]:
    """Open a pipe on high descriptors, so that it does not occupy 3 and 4, which chromium uses."""
    pair = os.pipe()
    high = tuple(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for each in pair)
    for each in pair:
        os.close(each)
    return high[0], high[1]


class Tab:
    """A tab with cookies of its own."""

    def __init__(self, chromium: Chromium, url: str) -> None:
        self._chromium = chromium
        self.url = url.rstrip("/")
        context = chromium.call("Target.createBrowserContext")["browserContextId"]
        target = chromium.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = chromium.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._chromium.call(method, self._session, **parameters)

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [
            each["params"]
            for each in self._chromium.events
            if each["method"] == method and each.get("sessionId") == self._session
        ]

    def show(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media="", features=[scheme])

    def open(self, path: str) -> None:
        """Load a page completely."""
        self._forget_loads()
        answer = self._call("Page.navigate", url=self.url + path)
        assert "errorText" not in answer, answer
        self._chromium.wait_event("Page.loadEventFired", self._session)

    def click_through(self, selector: str) -> None:
        """Click a link to another page, and wait for that page."""
        self._forget_loads()
        self.click(selector)
        self._chromium.wait_event("Page.loadEventFired", self._session)

    def _forget_loads(self) -> None:
        for each in list(self._chromium.events):
            if each["method"] == "Page.loadEventFired":
                self._chromium.events.remove(each)

    def click(self, selector: str) -> None:
        """Click the first element that matches."""
        assert self.run(f"document.querySelector({json.dumps(selector)}) !== null"), selector
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, value: str) -> None:
        """Enter the value of a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    def choose(self, selector: str, value: str) -> None:
        """Change a field whose form is then sent, and wait for the next page."""
        self.fill(selector, value)
        self._forget_loads()
        changed = "new Event('change', { bubbles: true })"
        self.run(f"document.querySelector({json.dumps(selector)}).dispatchEvent({changed})")
        self._chromium.wait_event("Page.loadEventFired", self._session)

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key])

    def run(self, expression: str) -> Any:  # noqa: ANN401 - any value
        """Return the value of an expression; a promise is awaited."""
        found = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a condition is true on the page that is open."""
        self.run(
            f"new Promise((resolve) => {{ const check = () => ({condition}) ? resolve(true) : setTimeout(check, 50); "
            f"check(); }})"
        )

    @property
    def text(self) -> str:
        """The visible text of the page."""
        return str(self.run("document.body.innerText"))

    @property
    def errors(self) -> list[str]:
        """Exceptions of scripts and lines of the console about errors, such as violations of the policy."""
        thrown = [str(each["exceptionDetails"]) for each in self._of("Runtime.exceptionThrown")]
        logged = [each["entry"] for each in self._of("Log.entryAdded")]
        return thrown + [each["text"] for each in logged if each["level"] == "error"]

    @property
    def requested(self) -> set[str]:
        """The addresses that were requested so far."""
        return {each["request"]["url"] for each in self._of("Network.requestWillBeSent")}

    @property
    def first_paint_ms(self) -> float:
        """The time from the navigation to the first paint."""
        return float(self.run("performance.getEntriesByName('first-paint')[0].startTime"))

    @property
    def too_wide(self) -> list[str]:
        """The elements that make the page wider than the window."""
        found = self.run(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth ? [] : "
            "[...document.querySelectorAll('body *')].filter((each) => each.closest('.scroll, nav') === null && "
            "each.getBoundingClientRect().right > document.documentElement.clientWidth).map((each) => each.outerHTML)"
        )
        return [str(each)[:200] for each in found][:5]

    def violations(self) -> list[dict[str, Any]]:
        """Return the findings of axe-core, contrast included."""
        self.run(_AXE.read_text() + "; undefined")
        found = self.run(
            "axe.run(document).then((all) => all.violations.map(({ id, impact, nodes }) => "
            "({ id, impact, where: nodes.map((node) => node.html + ' ' + node.failureSummary).slice(0, 3) })))"
        )
        violations: list[dict[str, Any]] = found
        return violations

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))


def check_first_paint(tab: Tab, path: str) -> None:
    """Check that some load of a page is painted fast; on a busy machine, the simplest page sets the limit."""
    times: list[float] = []
    simplest: list[float] = []
    while len(times) < _LOADS:
        for address, found in ((path, times), ("/nothing", simplest)):
            tab.open(address)
            tab.wait("performance.getEntriesByName('first-paint').length")
            found.append(tab.first_paint_ms)
        if min(times) < max(FIRST_PAINT_MS_MAX, 3 * min(simplest)):
            return
    raise AssertionError(f"first paints in milliseconds: {times}, of the simplest page {simplest}")


@contextmanager
def running_chromium(profile: Path) -> Iterator[Chromium]:
    """Run a browser during the block."""
    chromium = Chromium(profile)
    try:
        yield chromium
    finally:
        chromium.close()
