"""``shardwright sync``: its command line and its output."""

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from bson.json_util import dumps
from pymongo.errors import PyMongoError

from shardwright.sync.api import LOOPBACK, Api, publish, published_port, state_directory, unpublish
from shardwright.sync.batches import BYTES_MAX, DOCUMENTS_MAX, MEMORY_MAX, Limits
from shardwright.sync.comparing import NoMomentError
from shardwright.sync.copying import WORKERS
from shardwright.sync.ends import End
from shardwright.sync.preparing import Options, RefusedError
from shardwright.sync.replication import Filter, Replication, progress_lines, verify_lines
from shardwright.sync.session import Sync
from shardwright.sync.store import LEASE_SECONDS, LeaseHeldError, LeaseLostError
from shardwright.sync.verification import StandaloneVerification

if TYPE_CHECKING:
    from pathlib import Path

DIFFERENT: Final = 2
"""The exit status of ``sync verify`` after it has found differences."""

INTERRUPTED: Final = 130

_STEERING: Final = ("status", "pause", "resume", "commit", "reverse", "abort", "failures")
_JOIN_SECONDS: Final = 1.0


class SyncCommandError(Exception):
    """The command has failed; the message is for the user."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="SOURCE TARGET",
        help=f"connection strings; `verify SOURCE TARGET`; verify, {', '.join(_STEERING)} and an ID",
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
    parser.add_argument(
        "--zones",
        choices=("carry", "leave"),
        default="carry",
        help="whether collections with the same shard key at the target get the zones of the source (default: carry)",
    )
    parser.add_argument("--users", action="store_true", help="carry users and roles, with their credentials")
    parser.add_argument("--continuous", action="store_true", help="follow the source until commit or abort")
    parser.add_argument(
        "--reversible",
        action="store_true",
        help="stay after the commit, so that `reverse` can swap the roles without a copy; implies --continuous",
    )
    parser.add_argument("--no-source-writes", action="store_true", help="record checkpoints at the target alone")
    parser.add_argument(
        "--no-write-block", action="store_true", help="let commit trust that nothing writes at the source"
    )
    parser.add_argument(
        "--workers", type=_positive, default=WORKERS, help=f"ranges copied at a time (default: {WORKERS})"
    )
    parser.add_argument(
        "--batch-documents",
        type=_positive,
        default=DOCUMENTS_MAX,
        help=f"documents in a batch of a writer (default: {DOCUMENTS_MAX:,})",
    )
    parser.add_argument(
        "--batch-bytes",
        type=_positive,
        default=BYTES_MAX,
        help=f"bytes in a batch of a writer (default: {BYTES_MAX:,})",
    )
    parser.add_argument(
        "--memory", type=_positive, default=MEMORY_MAX, help=f"bytes that are buffered in all (default: {MEMORY_MAX:,})"
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="port of the HTTP API on loopback (default: any free one)"
    )
    parser.add_argument("--retry-failures", action="store_true", help="with resume: try refused documents again")
    parser.add_argument("--json", action="store_true", help="print one JSON line a second")


def run_command(options: argparse.Namespace, out: TextIO, check: Callable[[str, str], object]) -> int:
    """Run the command and return its exit status.

    Args:
        check: raises an error for the user if a connection string, whose name comes second, cannot be used.
    """
    words: list[str] = options.words
    if words[0] in _STEERING:
        return _steer(words, options, out)
    verifies = words[0] == "verify"
    if verifies and len(words) == 2:
        return _steer(words, options, out)
    uris = words[1:] if verifies else words
    if len(uris) != 2:
        raise SyncCommandError("a source and a target are needed")
    for name, uri in zip(("source", "target"), uris, strict=True):
        check(uri, f"the connection string of the {name}")
    chosen = Filter(frozenset(options.include), frozenset(options.exclude))
    _log_to(sys.stderr)
    replication = Replication(uris[0], uris[1], chosen, dict(options.shard), zones=options.zones == "carry")
    try:
        if verifies:
            return asyncio.run(_verify(replication, options, out))
        return asyncio.run(_replicate(replication, options, out))
    except RefusedError as error:
        raise SyncCommandError("nothing was written, because\n  " + "\n  ".join(error.refusals)) from error
    except (LeaseLostError, NoMomentError, PyMongoError) as error:
        raise SyncCommandError(str(error)) from error


class _Lines(logging.Formatter):
    """A formatter that appends the fields to the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        return f"{record.getMessage()} {fields}".rstrip()


def _log_to(stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines())
    logger = logging.getLogger("sync")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


class _Screen:
    """Output of the progress: JSON lines, lines of a terminal that are replaced, or the last state alone."""

    def __init__(self, out: TextIO, *, json: bool) -> None:
        self.out, self.json = out, json
        self._height = 0

    def show(self, progress: Mapping[str, Any], shown: Sequence[str], *, is_last: bool = False) -> None:
        """Show the progress."""
        if self.json:
            print(dumps(progress), file=self.out, flush=True)
        elif self.out.isatty():
            columns = shutil.get_terminal_size().columns
            begin = f"\x1b[{self._height}A" if self._height else ""
            print(begin + "\n".join(f"\r\x1b[K{each[: columns - 1]}" for each in shown), file=self.out, flush=True)
            self._height = len(shown)
        elif is_last:
            print("\n".join(shown), file=self.out, flush=True)


async def _replicate(replication: Replication, options: argparse.Namespace, out: TextIO) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopping.set)
    published: list[Path] = []
    screen = _Screen(out, json=options.json)
    try:
        limits = Limits.within(
            options.memory, workers=options.workers, documents=options.batch_documents, size=options.batch_bytes
        )
    except ValueError as error:
        raise SyncCommandError(str(error)) from error
    sync = Sync(
        replication,
        Options(
            merges=options.existing == "merge",
            source_writes=not options.no_source_writes,
            workers=options.workers,
            blocks_writes=not options.no_write_block,
            reversible=options.reversible,
            users=options.users,
            limits=limits,
        ),
        lambda: published.append(publish(replication.id, server.sockets[0].getsockname()[1])),
    )
    try:
        server = await asyncio.start_server(Api(sync).serve, LOOPBACK, options.port)
    except OSError as error:
        await sync.close()
        raise SyncCommandError(f"the HTTP API cannot use port {options.port}: {error.strerror}") from error
    print(f"replication {replication.id}", file=sys.stderr)
    try:
        while True:
            try:
                if not await _run_until(sync, stopping, options, screen):
                    print("stopped: the same command continues", file=sys.stderr)
                    return INTERRUPTED
            except LeaseHeldError:
                if await _join(sync, screen, stopping):
                    return 0
            else:
                screen.show(sync.progress(), progress_lines(sync.progress()), is_last=True)
                if sync.outcome.differs:
                    print("source and target differ: `shardwright sync verify` shows where", file=sys.stderr)
                    return DIFFERENT
                return 0
    finally:
        for path in published:
            unpublish(path)
        server.close()
        await sync.close()


async def _run_until(sync: Sync, stopping: asyncio.Event, options: argparse.Namespace, screen: _Screen) -> bool:
    """Run the replication; return whether it has ended by itself."""
    running = asyncio.create_task(sync.run(continuous=options.continuous or options.reversible))
    others = [asyncio.create_task(_show(sync, screen)), asyncio.create_task(stopping.wait())]
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


async def _join(sync: Sync, screen: _Screen, stopping: asyncio.Event) -> bool:
    """Show the progress of the process that runs the replication; return whether to end this one.

    If the other process ends before the replication is complete, this one takes over as soon as its lease has expired.
    """
    for _ in range(int(LEASE_SECONDS)):
        progress = await sync.progress_elsewhere()
        screen.show(progress, progress_lines(progress))
        is_over = progress.get("state") == "COMMITTED" and not progress.get("canReverse")
        if is_over or stopping.is_set():
            return True
        await asyncio.sleep(_JOIN_SECONDS)
    return False


async def _show(sync: Sync, screen: _Screen) -> None:
    while True:
        await asyncio.sleep(1.0)
        screen.show(sync.progress(), progress_lines(sync.progress()))


async def _show_alone(alone: StandaloneVerification, screen: _Screen) -> None:
    while True:
        await asyncio.sleep(1.0)
        screen.show(alone.progress(), verify_lines(alone.progress()))


async def _verify(replication: Replication, options: argparse.Namespace, out: TextIO) -> int:
    source, target = End("source", replication.source), End("target", replication.target)
    try:
        place_file = state_directory() / f"verify-{replication.id}.json"
        alone = StandaloneVerification(replication, source, target, place_file)
        showing = asyncio.create_task(_show_alone(alone, _Screen(out, json=options.json)))
        try:
            report = await alone.run()
        finally:
            showing.cancel()
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
            text = answer.read().decode()
            print(text, file=out)
            found = json.loads(text)
            is_different = words[0] == "verify" and not found["verification"]["equal"]
            if words[0] == "failures" and len(found["failures"]) < found["total"]:
                shown, total = len(found["failures"]), found["total"]
                print(f"the first {shown:,} of {total:,} refused documents", file=sys.stderr)
    except urllib.error.HTTPError as error:
        raise SyncCommandError(json.loads(error.read())["error"]) from error
    except OSError as error:
        raise SyncCommandError(f"the replication {words[1]} does not answer: {error}") from error
    return DIFFERENT if is_different else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return number


def _shard(text: str) -> tuple[str, dict[str, Any]]:
    namespace, _, key = text.partition("=")
    try:
        parsed = json.loads(key)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text} is not of the form NS=KEY, with KEY in JSON") from error
    if not isinstance(parsed, dict) or "." not in namespace:
        raise argparse.ArgumentTypeError(f"{text} is not of the form NS=KEY, with KEY in JSON")
    return namespace, parsed
