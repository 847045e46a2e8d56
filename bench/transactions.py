"""Transactions: their rate on one shard, and the latency of a commit on two shards.

The load is a closed loop on one connection, with prebuilt frames that are numbered by writing eight bytes. Every
transaction updates documents by shard key, and every reply is checked.
"""

import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final

import bson
from bson.binary import Binary
from bson.int64 import Int64

from bench.loadgen import BenchError
from bench.plan import body_of
from bench.targets import Target
from bench.workloads import DATABASE, DOCUMENTS, MONGODB, READ_COLLECTION, SPLIT_AT
from shardwright.wire.message import op_msg

UPPER_KEY: Final = SPLIT_AT + 1
LOWER_KEY: Final = 1

ONE_SHARD: Final = "one shard"
TWO_SHARDS: Final = "two shards"
TEN_STATEMENTS: Final = "ten statements on one shard"
TWO_TRANSACTIONS: Final = "one shard, then the other"

SHAPES: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    ONE_SHARD: ((UPPER_KEY,),),
    TEN_STATEMENTS: ((UPPER_KEY,) * 10,),
    TWO_TRANSACTIONS: ((LOWER_KEY,), (UPPER_KEY,)),
    TWO_SHARDS: ((LOWER_KEY, UPPER_KEY),),
}
"""The keys that each transaction of an operation updates; plain mongods have no shards, and all keys."""

_NUMBER: Final = 0x0123_4567_89AB_CDEF
_WARM_UP_SHARE: Final = 0.25
_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True)
class Transactions:
    """One measurement.

    Attributes:
        per_second: operations, of one transaction or two.
        p50_us: the median of the operations' latencies, in microseconds.
        cpu_us: CPU time per operation, by process, in microseconds.
    """

    target: str
    shape: str
    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: dict[str, float]


def measure_transactions(targets: Sequence[Target], *, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure the targets that drivers can use, in turn, and print the results."""
    print("\ntransactions on one connection, each of updates by shard key and a commit")
    results = []
    for _ in range(rounds):
        for shape in SHAPES:
            for target in (target for target in targets if target.dialect == MONGODB):
                result = measure(target, shape, seconds)
                results.append(result)
                cpu = ", ".join(f"{role} {each:,.0f}" for role, each in result.cpu_us.items())
                print(
                    f"  {shape:26} {target.name:12} {result.per_second:8,.1f}/s   p50 {result.p50_us:8,.0f} us   "
                    f"p99 {result.p99_us:8,.0f} us   CPU us: {cpu}",
                    flush=True,
                )
    return [asdict(result) for result in results]


def measure(target: Target, shape: str, seconds: float) -> Transactions:
    """Measure one target."""
    with _connected(target.address) as connection:
        session = _Session(connection, SHAPES[shape])
        _run(session, seconds * _WARM_UP_SHARE)
        before, began = target.cpu_seconds(), time.perf_counter()
        latencies = sorted(_run(session, seconds))
        took, after = time.perf_counter() - began, target.cpu_seconds()
    count = len(latencies)
    cpu_us = {role: (after[role] - before[role]) / count * 1e6 for role in after}
    p50, p99 = latencies[count // 2] * 1e6, latencies[count * 99 // 100] * 1e6
    return Transactions(target.name, shape, count / took, p50, p99, cpu_us)


def _run(session: "_Session", seconds: float) -> list[float]:
    deadline = time.perf_counter() + seconds
    latencies: list[float] = []
    while not latencies or time.perf_counter() < deadline:
        began = time.perf_counter()
        session.run()
        latencies.append(time.perf_counter() - began)
    return latencies


class _Session:
    """A session that repeats its transactions.

    Args:
        transactions: the keys that each of them updates.
    """

    def __init__(self, connection: socket.socket, transactions: Sequence[Sequence[int]]) -> None:
        self._connection = connection
        self._replies: BinaryIO = connection.makefile("rb")
        self._lsid = {"id": Binary.from_uuid(uuid.uuid4())}
        self._frames = [[_Frame(each) for each in self._commands(keys)] for keys in transactions]
        self._number = 0

    def run(self) -> None:
        """Run all transactions once."""
        for frames in self._frames:
            self._number += 1
            for frame in frames:
                self._connection.sendall(frame.numbered(self._number))
                header = self._replies.read(4)
                reply = body_of(header + self._replies.read(int.from_bytes(header, "little") - 4))
                if reply.get("ok") != 1 or reply.get("n", 1) != 1 or "writeErrors" in reply:
                    raise BenchError(f"a transaction failed: {reply}")

    def _commands(self, keys: Sequence[int]) -> Iterator[dict[str, Any]]:
        fields = {"lsid": self._lsid, "txnNumber": Int64(_NUMBER), "autocommit": False}
        for position, key in enumerate(keys):
            start = {} if position else {"startTransaction": True}
            updates = [{"q": {"key": key}, "u": {"$inc": {"counter": 1}}}]
            yield {"update": READ_COLLECTION, "updates": updates, **fields, **start, "$db": DATABASE}
        yield {"commitTransaction": 1, **fields, "writeConcern": {"w": "majority"}, "$db": "admin"}


class _Frame:
    """A request, and the position of its transaction number."""

    def __init__(self, command: dict[str, Any]) -> None:
        self._data = bytearray(op_msg(bson.encode(command), request_id=1))
        self._number_at = self._data.index(_NUMBER.to_bytes(8, "little"))

    def numbered(self, number: int) -> bytearray:
        """Return the request with a transaction number."""
        self._data[self._number_at : self._number_at + 8] = number.to_bytes(8, "little")
        return self._data


@contextmanager
def _connected(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _SECONDS_MAX) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


assert LOWER_KEY < SPLIT_AT <= UPPER_KEY < DOCUMENTS
