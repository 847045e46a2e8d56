"""A browser without a screen: cookies, forms and pages of one console."""

import http.client
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from bson.json_util import loads

START_SECONDS_MAX: Final = 120
_ADDRESS: Final = re.compile(r"the console is at (https?://\S+)")


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = loads(self.text)
        return found


@dataclass
class Browser:
    """One person's browser."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)
    set_cookies: list[str] = field(default_factory=list)
    host: str | None = None
    tls: ssl.SSLContext | None = None

    def get(self, path: str, **query: object) -> Answer:
        return self._request("GET", f"{path}?{urlencode(query)}" if query else path)

    def api(self, name: str, **query: object) -> dict[str, Any]:
        answer = self.get(f"/api/{name}", **query)
        assert answer.status == 200, answer.text
        return answer.document

    def post(self, path: str, *, csrf: str | None = None, **form: str) -> Answer:
        token = {"csrf": self.csrf if csrf is None else csrf}
        return self._request("POST", path, urlencode({**token, **form}).encode())

    @property
    def csrf(self) -> str:
        return str(self.api("session")["csrf"])

    def log_in(self, name: str, password: str) -> Answer:
        form = {"name": name, "password": password, "database": "admin", "next": "/"}
        return self._request("POST", "/log-in", urlencode(form).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        parts = urlsplit(self.url)
        where = str(parts.hostname), parts.port
        if self.tls is None:
            connection = http.client.HTTPConnection(*where, timeout=90)
        else:
            connection = http.client.HTTPSConnection(*where, timeout=90, context=self.tls)
        try:
            headers = {"Host": self.host or parts.netloc}
            if self.cookies:
                headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            if body is not None:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = Answer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
            for cookie in response.headers.get_all("set-cookie") or ():
                self.set_cookies.append(cookie)
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[name] = value.strip('"')
            return answer
        finally:
            connection.close()


@dataclass
class RunningConsole:
    """A console that serves."""

    url: str
    process: subprocess.Popen[str]
    lines: list[str]

    def browser(self) -> Browser:
        return Browser(self.url)

    def audit(self) -> list[dict[str, Any]]:
        """The lines about actions so far."""
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in found if line["component"] == "console.audit"]

    log: Any = None


@contextmanager
def running_console(directory: Any, log: Any, *options: str) -> Iterator[RunningConsole]:  # noqa: ANN401 - paths
    """Start the console of a cluster; afterwards it is stopped."""
    command = [sys.executable, "-m", "shardwright.deploy.cli", "console", str(directory), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--sample-seconds", "0.5", "--log-file", str(log), *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = _ADDRESS.search(line)
        assert found is not None, line or process.wait(10)
        yield RunningConsole(found[1], process, [line], log)
    finally:
        process.terminate()
        assert process.wait(START_SECONDS_MAX) == 0
        assert process.stdout is not None
        process.stdout.close()


class Tags(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline_scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inline_scripts += tag == "script" and "src" not in dict(attrs)

    def addresses(self, *only: str) -> list[str]:
        names = only or ("src", "href", "action", "hx-get", "hx-post", "poster", "data")
        return [str(attributes[name]) for _, attributes in self.found for name in names if attributes.get(name)]
