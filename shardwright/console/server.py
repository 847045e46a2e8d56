"""The process: listens, announces its address, and serves until a signal stops it."""

import asyncio
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hypercorn.asyncio import serve
from hypercorn.config import Config

from shardwright.console.app import Console
from shardwright.console.settings import Settings
from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

_log = get_logger("console.server")
_GRACE_SECONDS: Final = 2.0


def run(settings: Settings, announce: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        announce: receives the address for browsers, when the console listens.

    Raises:
        OSError: an address cannot be listened on, or the certificate cannot be read.
    """
    config = Config()
    config.accesslog = config.errorlog = None
    config.graceful_timeout = _GRACE_SECONDS
    config.include_server_header = False
    if settings.certificate is not None:
        config.certfile = config.keyfile = str(settings.certificate)
        config.create_ssl_context()
    sockets = _listening(settings)
    scheme = "http" if settings.certificate is None else "https"
    addresses = [each.getsockname() for each in sockets]
    urls = [f"{scheme}://{_bracketed(str(host))}:{port}/" for host, port, *_ in addresses]
    config.bind = [f"fd://{each.detach()}" for each in sockets]
    _log.info("Listening", addresses=urls)
    announce(urls[0])
    asyncio.run(_serve(replace(settings, port=addresses[0][1]), config))
    _log.info("Stopped")


def _listening(settings: Settings) -> list[socket.socket]:
    found: list[socket.socket] = []
    port = settings.port
    try:
        for address in settings.bind_ip:
            family, kind, protocol, _, where = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            each = socket.socket(family, kind, protocol)
            found.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(where)
            each.listen(100)
            each.setblocking(False)
            port = each.getsockname()[1]
    except OSError:
        for each in found:
            each.close()
        raise
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _serve(settings: Settings, config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    app: ASGIFramework = Console(settings).application()  # type: ignore[assignment]

    async def stopped() -> None:
        await stop.wait()

    await serve(app, config, shutdown_trigger=stopped)
