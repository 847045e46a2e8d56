"""The commands ``shardwright console``, ``explain`` and ``lint``: their options and their execution.

The web server's packages are imported only when it starts, and the code that reads a cluster only when a command needs
it, so that other commands of the launcher start faster.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, PyMongoError
from pymongo.uri_parser import parse_uri

from shardwright.console.any_value import CLIENT_OPTIONS
from shardwright.console.settings import CONSOLE, Settings, Target, WatchedTargets, read_targets
from shardwright.console.shell_syntax import SyntaxFault, short_text
from shardwright.daemon.configuration.file import ConfigurationError as OptionsError
from shardwright.daemon.configuration.option import add_options
from shardwright.daemon.logs import configure_logs

if TYPE_CHECKING:
    from shardwright.console.reader import Reader

SCHEMES: Final = ("mongodb://", "mongodb+srv://")

EXIT_OVER_BUDGET: Final = 2
"""The exit status of ``shardwright lint`` over its budget; errors exit with 1."""

_CONNECT_MILLISECONDS_MAX: Final = 10_000
_CHUNKS_SHOWN_MAX: Final = 10

Value = TypeVar("Value")


class ConsoleError(Exception):
    """The console did not start; the message is for the user."""


def add_console_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; the parsed options have the cluster as ``cluster``."""
    parser.add_argument(
        "cluster",
        nargs="?",
        metavar="DIR|URI",
        help="directory of a cluster, or connection string of routers (default: the directory of --dir)",
    )
    parser.add_argument("--config", metavar="FILE", help="read options from this YAML file")
    add_options(parser, CONSOLE)


def is_uri(cluster: str | None) -> bool:
    """Whether the command names a cluster by a connection string."""
    return cluster is not None and cluster.startswith(SCHEMES)


def run_console(
    options: argparse.Namespace,
    uri: str,
    announce: Callable[[str], object],
    *,
    title: str = "",
    targets: Sequence[Target] = (),
    client_options: Mapping[str, Any] | None = None,
) -> None:
    """Run the console until SIGINT or SIGTERM.

    Args:
        announce: receives the address for browsers, when the console listens.
        title: name of the cluster, unless the options have one.
        targets: the daemons' metrics, unless the options have some.
    """
    try:
        settings, values = settings_of(options, uri, title, targets, client_options or {})
        from shardwright.console.server import run
    except ImportError as error:
        raise ConsoleError(
            f"the console needs the package {error.name}: install it with `pip install 'shardwright[console]'`"
        ) from error
    try:
        configure_logs(values.log_level, values.log_file, log_format=values.log_format)
        run(settings, announce)
    except OSError as error:
        raise ConsoleError(f"cannot start the console: {error}") from error


def settings_of(
    options: argparse.Namespace,
    uri: str,
    title: str,
    targets: Sequence[Target],
    client_options: Mapping[str, Any],
) -> tuple[Settings, argparse.Namespace]:
    """Return the settings of a command line, checked, and the values of all options."""
    # The import takes a third of a second, which other commands of the launcher need not spend.
    from shardwright.daemon.configuration.configuration import configuration_of

    try:
        values = configuration_of(CONSOLE, options).values
        parsed = parse_uri(uri)
        if values.metrics_targets is not None:
            targets = WatchedTargets(values.metrics_targets, partial(read_targets, values.metrics_targets))
    except (OptionsError, ConfigurationError, PyMongoError, ValueError) as error:
        raise ConsoleError(str(error)) from error
    except OSError as error:
        raise ConsoleError(f"{error.filename}: {error.strerror}") from error
    if parsed.get("username"):
        raise ConsoleError("leave the user out of the connection string: people log in on the console's page")
    host, port = parsed["nodelist"][0]
    settings = Settings(
        uri=uri,
        client_options=client_options,
        targets=targets,
        bind_ip=values.bind_ip,
        port=values.port,
        certificate=values.tls_certificate_key_file,
        is_behind_tls=values.allow_plain_http,
        proxies=values.proxy_addresses or (),
        sample_seconds=values.sample_seconds,
        idle_seconds=values.idle_minutes * 60.0,
        title=values.title or title or f"{host}:{port}",
    )
    if not settings.is_on_loopback and settings.certificate is None and not values.allow_plain_http:
        raise ConsoleError(
            "passwords would cross the network in plain text: give --tls-certificate-key-file, or --allow-plain-http "
            "if a proxy in front of the console has TLS"
        )
    return settings, values


class RoutingCommandError(Exception):
    """The command has failed; the message is for the user."""


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``shardwright explain``."""
    parser.add_argument("text", metavar="OPERATION", help="as in mongosh, for example 'db.orders.find({ a: 1 })'")
    _add_common(parser)


def add_lint_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``shardwright lint``."""
    parser.add_argument(
        "file", metavar="FILE", help="commands in JSON or as in mongosh, or a log with slow operations; - for the input"
    )
    parser.add_argument(
        "--scatter-max",
        type=_share,
        metavar="PERCENT",
        help="exit with 2 if more operations go to several shards, or any is refused, for example 5%%",
    )
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--uri", help="connection string of routers (default: the cluster in the directory)")
    parser.add_argument("--db", default="test", help="the database of operations that name none (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one line of extended JSON")


def _share(text: str) -> float:
    try:
        number = float(text.removesuffix("%")) / 100
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a percentage") from error
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0% and 100%")
    return number


def run_explain(
    options: argparse.Namespace, uri: str, client_options: Mapping[str, Any], write: Callable[[str], object]
) -> int:
    """Explain the routing of an operation, and return the exit status.

    Raises:
        RoutingCommandError: the operation cannot be parsed, or the cluster refused or did not answer.
    """
    from shardwright.console.explaining import explained

    found = _run(uri, client_options, lambda reader: explained(reader, options.text, options.db))
    write(dumps(found, json_options=RELAXED_JSON_OPTIONS) if options.json else explanation_text(found))
    return 0


def run_lint(
    options: argparse.Namespace, uri: str, client_options: Mapping[str, Any], write: Callable[[str], object]
) -> int:
    """Print the scattered shapes of a file, and return the exit status. Arguments as `run_explain`.

    Raises:
        RoutingCommandError: the file cannot be read, has no operations, or the cluster refused or did not answer.
    """
    from shardwright.console.lint import lint

    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RoutingCommandError(f"cannot read {options.file}: {error}") from error
    report = _run(uri, client_options, lambda reader: lint(reader, text.splitlines(), options.db))
    if not report.operations:
        reasons = ", ".join(report.unused) or "it is empty"
        raise RoutingCommandError(f"{options.file} has no operations: {reasons[:300]}")
    scatter_max = options.scatter_max
    write(dumps(report.document(scatter_max)) if options.json else report.text(scatter_max))
    return 0 if report.is_within(scatter_max) else EXIT_OVER_BUDGET


def _run(uri: str, client_options: Mapping[str, Any], attempt: "Callable[[Reader], Awaitable[Value]]") -> Value:
    # Other commands of the launcher need not spend the time for these imports.
    from shardwright.console.reader import LoggedOut, Reader, Refused

    async def run() -> Value:
        own = {"serverSelectionTimeoutMS": _CONNECT_MILLISECONDS_MAX, "tz_aware": True, **CLIENT_OPTIONS}
        options = {**own, **client_options}
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(uri, **options)
        async with client:
            return await attempt(Reader(client))

    try:
        return asyncio.run(run())
    except (SyntaxFault, LoggedOut, Refused, PyMongoError) as error:
        raise RoutingCommandError(str(error)) from error


def explanation_text(found: Mapping[str, Any]) -> str:
    """Format an explanation for people."""
    lines = [f"{found['ns']}: {found['command']}"]
    if found["isSharded"]:
        lines.append(f"\nshard key  {short_text({'': found['key']})}")
        for each in found["predicates"]:
            state = "fixed" if each["isFixed"] else "restricted" if each["isRestricted"] else "not restricted"
            conditions = " and ".join(each["conditions"])
            hashed = ", hashed" if each["isHashed"] else ""
            lines.append(f"  {each['field']}{hashed}: {conditions + ', ' if conditions else ''}{state}")
        lines.append(f"chunks     {found['chunkCount']:,} of {found['chunksOfAll']:,} can match")
        for chunk in found["chunks"][:_CHUNKS_SHOWN_MAX]:
            lines.append(f"  [{short_text(chunk['min'])}, {short_text(chunk['max'])}) on {chunk['shard']}")
        if found["chunks"][_CHUNKS_SHOWN_MAX:]:
            lines.append("  …")
    lines.append(f"shards     {', '.join(found['shards']) or 'none'}")
    lines += [f"  {text}" for text in found["reasons"]]
    if found["advice"]:
        lines += ["to target it", *(f"  {text}" for text in found["advice"])]
    return "\n".join(lines)
