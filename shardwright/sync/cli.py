"""``shardwright sync``: its command line, and what it prints."""

import argparse
import asyncio
import json
import logging
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from bson.json_util import dumps
from pymongo.errors import PyMongoError

from shardwright.sync.api import LOOPBACK, Api, publish, published_port
from shardwright.sync.copying import WORKERS
from shardwright.sync.ends import End
from shardwright.sync.replication import Filter, Replication
from shardwright.sync.session import Options, RefusedError, Sync
from shardwright.sync.store import LEASE_SECONDS, LeaseHeldError, LeaseLostError
from shardwright.sync.verifying import verified

if TYPE_CHECKING:
    from pathlib import Path

DIFFERENT: Final = 2
"""The exit status of ``sync verify`` if it has found something."""

INTERRUPTED: Final = 130

_STEERING: Final = ("status", "pause", "resume", "commit", "abort", "failures")
_BAR_WIDTH: Final = 32
_JOIN_SECONDS: Final = 1.0


class SyncCommandError(Exception):
    """Why the command has ended."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="SOURCE TARGET",
        help=f"connection strings; or `verify SOURCE TARGET`; or {', '.join(_STEERING)} with the ID of a replication",
    )
    parser.add_argument("--include", action="append", default=[], metavar="NS", help="a database or collection")
    parser.add_argument("--exclude", action="append", default=[], metavar="NS", help="a database or collection")
    parser.add_argument(
        "--existing",
        choices=("fail", "merge"),
        default="fail",
        help="what to do if a collection of the target has documents (default: fail); merge makes it equal the source",
    )
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        type=_shard,
        metavar="NS=KEY",
        help="shard a collection at the target, for example 'shop.orders={\"customer\": 1}'",
    )
    parser.add_argument("--continuous", action="store_true", help="follow the source until commit or abort")
    parser.add_argument("--no-source-writes", action="store_true", help="record checkpoints at the target alone")
    parser.add_argument(
        "--no-write-block", action="store_true", help="let commit trust that nothing writes at the source"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"ranges copied at a time (default: {WORKERS})")
    parser.add_argument("--port", type=int, default=0, help="port of the HTTP API on loopback (default: any free one)")
    parser.add_argument("--retry-failures", action="store_true", help="with resume: try refused documents again")
    parser.add_argument("--json", action="store_true", help="print one JSON line a second")


def run_command(options: argparse.Namespace, out: TextIO) -> int:
    """Run the command; returns its exit status.

    Raises:
        SyncCommandError: it could not be done.
    """
    words: list[str] = options.words
    if words[0] in _STEERING:
        return _steer(words, options, out)
    verifies = words[0] == "verify"
    uris = words[1:] if verifies else words
    if len(uris) != 2:
        raise SyncCommandError("a source and a target are needed")
    chosen = Filter(frozenset(options.include), frozenset(options.exclude))
    _log_to(sys.stderr)
    replication = Replication(uris[0], uris[1], chosen, dict(options.shard))
    try:
        if verifies:
            return asyncio.run(_verify(replication, out))
        return asyncio.run(_replicate(replication, options, out))
    except RefusedError as error:
        raise SyncCommandError("nothing was written, because\n  " + "\n  ".join(error.plan.refusals)) from error
    except (LeaseLostError, PyMongoError) as error:
        raise SyncCommandError(str(error)) from error


class _Lines(logging.Formatter):
    """A message with its fields, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        return f"{record.getMessage()} {fields}".rstrip()


def _log_to(stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines())
    logger = logging.getLogger("sync")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


async def _replicate(replication: Replication, options: argparse.Namespace, out: TextIO) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopping.set)
    published: list[Path] = []
    sync = Sync(
        replication,
        Options(
            merges=options.existing == "merge",
            source_writes=not options.no_source_writes,
            workers=options.workers,
            blocks_writes=not options.no_write_block,
        ),
        lambda: published.append(publish(replication.id, server.sockets[0].getsockname()[1])),
    )
    server = await asyncio.start_server(Api(sync).serve, LOOPBACK, options.port)
    print(f"replication {replication.id}", file=sys.stderr)
    try:
        while True:
            try:
                if not await _run_until(sync, stopping, options, out):
                    print("stopped: the same command continues", file=sys.stderr)
                    return INTERRUPTED
            except LeaseHeldError:
                if await _join(sync, options, out, stopping):
                    return 0
            else:
                _print(sync.progress(), options, out, is_last=True)
                return 0
    finally:
        for path in published:
            path.unlink(missing_ok=True)
        server.close()
        await sync.close()


async def _run_until(sync: Sync, stopping: asyncio.Event, options: argparse.Namespace, out: TextIO) -> bool:
    """Run the replication; returns whether it has ended by itself."""
    running = asyncio.create_task(sync.run(continuous=options.continuous))
    others = [asyncio.create_task(_show(sync, options, out)), asyncio.create_task(stopping.wait())]
    try:
        await asyncio.wait((running, *others), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))
            return False
        await running
        return True
    finally:
        for each in others:
            each.cancel()


async def _join(sync: Sync, options: argparse.Namespace, out: TextIO, stopping: asyncio.Event) -> bool:
    """Show the progress of the process that runs the replication; returns whether it has finished.

    If that process ends before, this one takes over as soon as its lease has expired.
    """
    for _ in range(int(LEASE_SECONDS)):
        progress = await sync.progress_elsewhere()
        _print(progress, options, out)
        if progress.get("state") == "COMMITTED" or stopping.is_set():
            return True
        await asyncio.sleep(_JOIN_SECONDS)
    return False


async def _show(sync: Sync, options: argparse.Namespace, out: TextIO) -> None:
    while True:
        await asyncio.sleep(1.0)
        _print(sync.progress(), options, out)


def _print(progress: Mapping[str, Any], options: argparse.Namespace, out: TextIO, *, is_last: bool = False) -> None:
    if options.json:
        print(dumps(progress), file=out, flush=True)
    elif out.isatty():
        print(f"\r{_line(progress)}", end="\n" if is_last else "", file=out, flush=True)
    elif is_last:
        print(_line(progress), file=out, flush=True)


def _line(progress: Mapping[str, Any]) -> str:
    copied = progress.get("collectionCopy", {})
    total, done = copied.get("estimatedTotalBytes", 0), copied.get("estimatedCopiedBytes", 0)
    filled = _BAR_WIDTH if not total else min(_BAR_WIDTH, _BAR_WIDTH * done // total)
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return (
        f"{progress.get('state', 'IDLE'):<10} {bar} {copied.get('copiedDocuments', 0):>12,} documents "
        f"{done / 1e6:>10,.1f} MB {progress.get('eventsApplied', 0):>10,} events "
        f"lag {progress.get('lagTimeSeconds', 0)} s"
    )


async def _verify(replication: Replication, out: TextIO) -> int:
    source, target = End("source", replication.source), End("target", replication.target)
    try:
        found = await source.deployment(replication.filter)
        namespaces = sorted(each.namespace for each in found.collections.values() if each.kind == "collection")
        moment = (await source.now(), await target.now())
        report = await verified(source, target, namespaces, lambda: moment)
    finally:
        await source.close()
        await target.close()
    print(dumps(report.document()), file=out)
    return 0 if report.is_equal else DIFFERENT


def _steer(words: Sequence[str], options: argparse.Namespace, out: TextIO) -> int:
    if len(words) != 2:
        raise SyncCommandError(f"`sync {words[0]}` needs the id of a replication")
    port = published_port(words[1])
    if port is None:
        raise SyncCommandError(f"no replication {words[1]} runs on this machine")
    names = {"status": ("GET", "progress"), "failures": ("GET", "failures")}
    method, name = names.get(words[0], ("POST", words[0]))
    body = json.dumps({"retryFailures": options.retry_failures}).encode() if method == "POST" else None
    request = urllib.request.Request(f"http://{LOOPBACK}:{port}/api/v1/{name}", body, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            print(answer.read().decode(), file=out)
    except urllib.error.HTTPError as error:
        raise SyncCommandError(json.loads(error.read())["error"]) from error
    except OSError as error:
        raise SyncCommandError(f"the replication {words[1]} does not answer: {error}") from error
    return 0


def _shard(text: str) -> tuple[str, dict[str, Any]]:
    namespace, _, key = text.partition("=")
    try:
        parsed = json.loads(key)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text} is not of the form NS=KEY, with KEY in JSON") from error
    if not isinstance(parsed, dict) or "." not in namespace:
        raise argparse.ArgumentTypeError(f"{text} is not of the form NS=KEY, with KEY in JSON")
    return namespace, parsed
