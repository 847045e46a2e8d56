"""The delay of change streams: from the sending of a write until its event has been read.

A second process inserts documents at a fixed rate through the same address. Each document has its sending time, by the
clock that all processes of the machine share. The writes have ``w: 1``, so the delay includes the time until mongod's
majority has them, which a stream waits for.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from pymongo.change_stream import ChangeStream
from pymongo.collection import Collection

from bench.loadgen import BenchError
from bench.paced_writer import EVENTS_PER_SECOND
from bench.targets import Target
from bench.workloads import DATABASE, SPLIT_AT, STREAM_COLLECTION
from shardwright.deploy.mongod import connect

BOTH: Final = "writes to both shards"
ONE: Final = "writes to one shard"

_COMMAND_SECONDS: Final = 60.0
_WARM_UP_SECONDS: Final = 1.0
_SHARE_MIN: Final = 0.1
"""Minimum share of the wanted events, because the writer may fall behind on a slow machine."""


@dataclass(frozen=True)
class Delays:
    """Delays measured on one target.

    Attributes:
        load: the shards that the writes went to.
        events_per_second: rate of the events read.
        p50_ms, p99_ms, max_ms: the delays.
        cpu_us: CPU time per event of each of the target's processes.
    """

    target: str
    load: str
    events_per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_us: dict[str, float]

    def to_document(self) -> dict[str, Any]:
        """Return the document for the results."""
        return asdict(self)


def measure_change_streams(targets: Sequence[Target], *, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure all targets in turn and print the results."""
    print(f"\nchange stream, {EVENTS_PER_SECOND:,} events per second")
    results = []
    for load in (BOTH, ONE):
        for _ in range(rounds):
            for target in targets:
                delays = measure(target, load, seconds)
                results.append(delays)
                print(_line(delays), flush=True)
    return [delays.to_document() for delays in results]


def measure(target: Target, load: str, seconds: float) -> Delays:
    """Measure one target."""
    delays: list[float] = []
    with connect(target.address, _COMMAND_SECONDS) as client:
        collection = client[DATABASE].get_collection(STREAM_COLLECTION, codec_options=DEFAULT_RAW_BSON_OPTIONS)
        with (
            collection.watch(max_await_time_ms=1000) as stream,
            _writer(target.address, 0 if load == BOTH else SPLIT_AT),
        ):
            _read(stream, _WARM_UP_SECONDS, [])
            before = target.cpu_seconds()
            _read(stream, seconds, delays)
            after = target.cpu_seconds()
    if len(delays) < EVENTS_PER_SECOND * seconds * _SHARE_MIN:
        raise BenchError(f"{target.name} returned only {len(delays)} events")
    delays.sort()
    return Delays(
        target.name,
        load,
        len(delays) / seconds,
        delays[len(delays) // 2] * 1000,
        delays[len(delays) * 99 // 100] * 1000,
        delays[-1] * 1000,
        {role: (after[role] - before[role]) / len(delays) * 1e6 for role in after},
    )


def _read(stream: ChangeStream[Any], seconds: float, delays: list[float]) -> None:
    """Read events for some time and add their delays."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        event = stream.try_next()
        if event is not None:
            delays.append(time.monotonic() - event["fullDocument"]["sent"])


def delays_of(collection: Collection[Any], address: str, seconds: float) -> list[float]:
    """Return the delays of a change stream, in seconds, while documents are inserted.

    Args:
        collection: the watched collection.
        address: receives the writes; ``collection`` may be a copy on another deployment.
        seconds: duration of the measurement.
    """
    delays: list[float] = []
    with collection.watch(max_await_time_ms=1000) as stream, _writer(address, 0):
        _read(stream, _WARM_UP_SECONDS, [])
        _read(stream, seconds, delays)
    return delays


@contextmanager
def _writer(address: str, lowest_key: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.paced_writer", address, str(lowest_key)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _line(delays: Delays) -> str:
    cpu = ", ".join(f"{role} {microseconds:,.0f}" for role, microseconds in delays.cpu_us.items())
    return (
        f"  {delays.load:24} {delays.target:12} {delays.events_per_second:7,.0f}/s   p50 {delays.p50_ms:6.1f} ms   "
        f"p99 {delays.p99_ms:6.1f} ms   max {delays.max_ms:6.1f} ms   CPU us per event: {cpu}"
    )
