"""``shardwright explain`` and ``shardwright lint``: their options, and their runs on a cluster."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from shardwright.console.shell_syntax import SyntaxFault
from shardwright.console.shell_text import short_text

if TYPE_CHECKING:
    from shardwright.console.reader import Reader

EXIT_OVER_BUDGET: Final = 2
"""The exit status of ``shardwright lint`` over its budget; errors exit with 1."""

_CONNECT_MILLISECONDS_MAX: Final = 10_000
_CHUNKS_SHOWN_MAX: Final = 10

Value = TypeVar("Value")


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
    from shardwright.console.reader import Reader, Refused

    async def run() -> Value:
        options = {"serverSelectionTimeoutMS": _CONNECT_MILLISECONDS_MAX, "tz_aware": True, **client_options}
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(uri, **options)
        async with client:
            return await attempt(Reader(client))

    try:
        return asyncio.run(run())
    except (SyntaxFault, Refused, PyMongoError) as error:
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
