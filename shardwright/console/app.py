"""The web application: sessions, CSRF tokens, security headers, the routes of pages and API, and OpenAPI's document."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from bson import json_util
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardwright.console.actions import ActionFault
from shardwright.console.any_value import MALFORMED
from shardwright.console.api import ENDPOINTS, Endpoint
from shardwright.console.collections import UnknownCollection
from shardwright.console.metrics import Sampler
from shardwright.console.pages import FORMS, PAGES, Page, Renderer
from shardwright.console.reader import LoggedOut, Refused
from shardwright.console.sessions import BadParameter, Call, LogInError, Session, Sessions
from shardwright.console.settings import STATIC, Settings, is_loopback
from shardwright.console.shell_syntax import SyntaxFault
from shardwright.daemon.version import package_version
from shardwright.wire.logger import get_logger

_log = get_logger("console.app")

BODY_BYTES_MAX: Final = 256 * 1024
_LINE_SECONDS: Final = 60.0
"""Minimum time between two log lines about failed requests without a session."""

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without a referrer, browsers send "Origin: null" from our own pages
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Answer = Callable[[Request], Awaitable[Response]]


class Fault(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Console:
    """The application, with the state that its requests share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sampler = Sampler(settings.targets, settings.sample_seconds)
        self._sessions = Sessions(settings)
        self._renderer = Renderer(settings)
        self._next_line_at = 0.0
        self._without_metrics = Sampler((), settings.sample_seconds), replace(settings, targets=())

    def routes(self) -> list[BaseRoute]:
        """Return the routes of all addresses."""
        return [
            Route("/log-in", self._log_in, methods=["GET", "POST"]),
            Route("/log-out", self._log_out, methods=["POST"]),
            Route("/api/openapi.json", self._open_api),
            *(Route(f"/api/{each.path}", self._api(each), methods=[each.method]) for each in ENDPOINTS),
            *(Route(each.path, self._page(each), methods=["GET"]) for each in PAGES),
            *(Route(each.path, self._page(each), methods=["POST"]) for each in FORMS),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def application(self) -> ASGIApp:
        """Return the application for the web server."""
        handlers: Any = {404: self._not_found, Exception: self._failed}
        app = Starlette(routes=self.routes(), lifespan=self._lifespan, exception_handlers=handlers)
        return _with_headers(app)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._sampler.run()), asyncio.create_task(self._sessions.end_idle())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._sessions.close()

    async def _session(self, request: Request) -> Session:
        """Return the session of a request; a new one if the cluster has no access control.

        Raises:
            Fault: the user has to log in, or the console may not be used in this way.
        """
        session = self._sessions.found(request.cookies.get(self._settings.cookie))
        if session is not None and not session.is_open:
            return session
        if not await self._sessions.is_cluster_open():
            if session is not None:
                await self._sessions.end(session)
            raise Fault(401, "log in first")
        self._check_open_access(request)
        return session or await self._sessions.start_open()

    def _check_open_access(self, request: Request) -> None:
        """Allow only this machine if there is no access control, and no page of another site through its browser."""
        if not self._settings.is_on_loopback:
            raise Fault(
                403,
                "this cluster has no access control, so the console serves it on loopback only: start the console with "
                "--bind-ip 127.0.0.1, or turn access control on",
            )
        if not is_loopback(_host(request)):
            raise Fault(403, "open this page under the address 127.0.0.1 or localhost")

    async def _call(self, request: Request, *, is_read: bool = True) -> Call:
        """Return the call of a request.

        Args:
            is_read: whether it reads the cluster, so that the user must still exist.
        """
        session = await self._session(request)
        given: Mapping[str, str] = dict(request.query_params)
        if request.method == "POST":
            given = await _form(request)
            token = request.headers.get("x-csrf-token") or given.get("csrf", "")
            if not secrets.compare_digest(token.encode(), session.csrf.encode()):
                raise Fault(403, "the form is too old: load the page again")
        sampler, settings = self._sampler, self._settings
        if is_read:
            rights = await session.rights()
            if not (rights.may("serverStatus") and rights.may("connPoolStats")):
                sampler, settings = self._without_metrics
        return Call(session, given, sampler, settings, self._remote(request))

    async def _fault(self, request: Request, error: Exception) -> tuple[int, str]:
        """Return status and text for an error; end a session whose log-in is no longer valid."""
        session = self._sessions.found(request.cookies.get(self._settings.cookie))
        if isinstance(error, LoggedOut) and session is not None:
            await self._sessions.end(session)
        return _status(error)

    def _api(self, endpoint: Endpoint) -> Answer:
        async def answer(request: Request) -> Response:
            try:
                call = await self._call(request)
                response = _json(await endpoint.answer(call))
                self._set_cookie(request, response, call.session)
                return response
            except _ANSWERED as error:
                status, text = await self._fault(request, error)
                return _json({"error": text}, status)

        return answer

    def _page(self, page: Page) -> Answer:
        async def answer(request: Request) -> Response:
            try:
                call = await self._call(request)
                response = await page.answer(call, self._renderer)
                self._set_cookie(request, response, call.session)
                return response
            except _ANSWERED as error:
                status, text = await self._fault(request, error)
                if status == 401:
                    return self._to_log_in(request)
                session = self._sessions.found(request.cookies.get(self._settings.cookie))
                return await self._renderer.page("error.html", page.title, session, status=status, error=text)

        return answer

    def _to_log_in(self, request: Request) -> Response:
        if request.headers.get("hx-request"):
            return Response(status_code=200, headers={"HX-Redirect": "/log-in"})
        path = request.url.path if request.method == "GET" else "/"
        query = f"?{request.url.query}" if request.url.query and request.method == "GET" else ""
        return RedirectResponse(f"/log-in?{urlencode({'next': path + query})}", status_code=303)

    async def _log_in(self, request: Request) -> Response:
        error, status = "", 200
        target = request.query_params.get("next", "/")
        name = ""
        if request.method == "POST":
            try:
                form = await _form(request)
                target, name = form.get("next", "/"), form.get("name", "")
                check_origin(request)
                session = await self._sessions.log_in(
                    self._remote(request), name, form.get("password", ""), form.get("database", "admin")
                )
            except LogInError as refused:
                error, status = str(refused), 403
            except Fault as fault:
                error, status = str(fault), fault.status
            else:
                if request.headers.get("accept", "").startswith("application/json"):
                    response: Response = _json({"user": session.user, "csrf": session.csrf})
                else:
                    response = RedirectResponse(_own_path(target), status_code=303)
                self._set_cookie(request, response, session)
                return response
        return await self._renderer.page(
            "log-in.html", "Log in", None, status=status, error=error, next=_own_path(target), name=name
        )

    async def _log_out(self, request: Request) -> Response:
        try:
            call = await self._call(request, is_read=False)
        except _ANSWERED as error:
            status, text = await self._fault(request, error)
            return await self._renderer.page("error.html", "Log out", None, status=status, error=text)
        await self._sessions.end(call.session)
        response = RedirectResponse("/log-in", status_code=303)
        response.delete_cookie(self._settings.cookie)
        return response

    async def _open_api(self, _request: Request) -> Response:
        return _json(open_api(package_version(), self._settings.cookie))

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        if request.url.path.startswith("/api/"):
            return _json({"error": "there is no such address"}, 404)
        session = self._sessions.found(request.cookies.get(self._settings.cookie))
        return await self._renderer.page(
            "error.html", "Not found", session, status=404, error="there is no page at this address"
        )

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Answer after a bug: it is logged, and other requests continue."""
        session, now = self._sessions.found(request.cookies.get(self._settings.cookie)), time.monotonic()
        if session is not None or now >= self._next_line_at:  # clients without a log-in must not fill the log
            self._next_line_at = now + _LINE_SECONDS
            _log.exception("Could not answer a request", raised=error, path=request.url.path)
        text = "this is a bug of the console: its log has the details"
        if request.url.path.startswith("/api/"):
            return _json({"error": text}, 500)
        return await self._renderer.page("error.html", "Error", session, status=500, error=text)

    def _remote(self, request: Request) -> str:
        return remote_address(request, self._settings.proxies)

    def _set_cookie(self, request: Request, response: Response, session: Session) -> None:
        if request.cookies.get(self._settings.cookie) != session.token:
            response.set_cookie(
                self._settings.cookie,
                session.token,
                httponly=True,
                samesite="strict",
                secure=is_secure(request, self._settings),
            )


_ANSWERED: Final = (ActionFault, BadParameter, Fault, LoggedOut, Refused, SyntaxFault)


def _status(error: Exception) -> tuple[int, str]:
    match error:
        case Fault():
            return error.status, str(error)
        case LoggedOut():
            return 401, str(error)
        case UnknownCollection():
            return 404, str(error)
        case Refused():
            if error.is_of_rights:
                return 403, str(error)
            return (503 if error.is_away else 409), str(error)
        case ActionFault():
            return (403 if error.is_of_rights else 400), str(error)
        case _:
            return 400, str(error)


def _json(document: Any, status: int = 200) -> Response:  # noqa: ANN401 - any document
    text = json_util.dumps(document, json_options=json_util.RELAXED_JSON_OPTIONS)
    return Response(text, status, media_type="application/json")


async def _form(request: Request) -> dict[str, str]:
    """Read the fields of a form, or of a JSON document.

    Raises:
        Fault: the body is too long or not valid.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise Fault(413, "the request is too long")
    try:
        if request.headers.get("content-type", "").startswith("application/json"):
            found = {str(name): str(value) for name, value in json.loads(body).items()}
        else:
            found = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True))
        "".join(each for field in found.items() for each in field).encode()  # fails for lone surrogates from JSON
        return found
    except MALFORMED as error:
        raise Fault(400, "the body is not a form") from error


def check_origin(request: Request) -> None:
    """Refuse a log-in that another site's page has sent; programs send no origin."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Fault(403, "the log-in comes from another site")


def is_secure(request: Request, settings: Settings) -> bool:
    """Whether the browser has reached the console through TLS, so that it accepts secure cookies."""
    if settings.certificate is not None or request.url.scheme == "https":
        return True
    return settings.is_behind_tls and not is_loopback(_host(request))  # on the same machine there may be no proxy


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return host.rpartition(":")[0] or host


def _own_path(path: str) -> str:
    """Return a path of this console, whatever address a link contains."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


def remote_address(request: Request, proxies: Sequence[str]) -> str:
    """Return the address of the browser: the last address that is not a known proxy."""
    peer = request.client.host if request.client else ""
    if peer not in proxies:
        return peer
    named = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    return next((each for text in reversed(named) if (each := text.strip()) and each not in proxies), peer)


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Add the security headers to each response."""
    fixed = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        is_static = str(scope.get("path", "")).startswith("/static/")
        cache = b"public, max-age=86400" if is_static else b"no-store"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *fixed, (b"cache-control", cache)]}
            await send(message)

        await app(scope, receive, send_with_headers if scope["type"] == "http" else send)

    return wrapped


def open_api(version: str, cookie: str) -> dict[str, Any]:
    """Return the OpenAPI document of all endpoints."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shardwright console",
            "version": version,
            "description": "The data behind each page of the console, in MongoDB's relaxed Extended JSON. "
            "Log in with POST /log-in, which sets the session's cookie.",
        },
        "components": {"securitySchemes": {"session": {"type": "apiKey", "in": "cookie", "name": cookie}}},
        "security": [{"session": []}],
        "paths": {f"/api/{each.path}": {each.method.lower(): _operation(each)} for each in ENDPOINTS},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": endpoint.path,
        "summary": endpoint.summary,
        "responses": {
            "200": {
                "description": "the data",
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "required": list(endpoint.returns),
                            "properties": {name: {"description": text} for name, text in endpoint.returns.items()},
                        }
                    }
                },
            },
            **{
                status: {"description": text}
                for status, text in (
                    ("400", "a parameter is missing or not valid"),
                    ("401", "no session"),
                    ("403", "the user lacks a right, or the CSRF token is wrong"),
                    ("404", "the collection is not sharded"),
                    ("503", "no router answers"),
                )
            },
        },
    }
    properties: dict[str, dict[str, str]] = {
        name.rstrip("?"): {"type": "string", "description": text} for name, text in endpoint.parameters.items()
    }
    required = [name for name in endpoint.parameters if not name.endswith("?")]
    if endpoint.method == "GET":
        described["parameters"] = [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "schema": {"type": "string"},
                "description": text,
            }
            for name, text in ((name, each["description"]) for name, each in properties.items())
        ]
    else:
        schema = {"type": "object", "required": required, "properties": properties}
        described["requestBody"] = {"content": {"application/x-www-form-urlencoded": {"schema": schema}}}
    return described
