"""``shardwright console``: its command line. The web server's packages are imported only when it starts."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pymongo.errors import ConfigurationError, PyMongoError
from pymongo.uri_parser import parse_uri

from shardwright.console.options import CONSOLE
from shardwright.console.settings import Settings, Target, read_targets
from shardwright.daemon.configuration.command_line import add_options
from shardwright.daemon.configuration.file import ConfigurationError as OptionsError
from shardwright.daemon.logs import configure_logs

SCHEMES: Final = ("mongodb://", "mongodb+srv://")


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
            targets = read_targets(values.metrics_targets)
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
        targets=tuple(targets),
        bind_ip=values.bind_ip,
        port=values.port,
        certificate=values.tls_certificate_key_file,
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
