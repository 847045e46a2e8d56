"""Benchmarks in turns: each contender runs for a quarter of a second in a closed loop on one connection.

Other work on the machine, which comes and goes within seconds, then affects all contenders equally.
"""

import base64
import os
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, BinaryIO, Final, Self

from bson.binary import Binary

from bench.cluster import OurCluster, running_cluster
from bench.loadgen import BenchError
from bench.plan import body_of, request
from bench.targets import Target
from bench.workloads import DATABASE
from shardwright.wire.scram import ClientConversation, Mechanism, ScramKeys

_COLLECTION: Final = "points"
_DOCUMENTS: Final = 1_000
_SLICE_SECONDS: Final = 0.25
_WARM_UP_SHARE: Final = 0.2
_TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Slice:
    """Measurement of one cluster during its part of a turn; CPU time is per repetition, by process.

    Attributes:
        per_second: repetitions per second.
        p50_us: the median of the latencies, in microseconds.
    """

    per_second: float
    p50_us: float
    cpu_us: dict[str, float]


@dataclass(frozen=True)
class Cost:
    """The measurement of one contender: medians over all turns.

    Attributes:
        of_first: quartiles of the rate, as a ratio to the first contender's rate in the same turn.
        more_cpu_us: CPU time beyond the first contender's in the same turn.
    """

    contender: str
    what: str
    turns: int
    per_second: float
    p50_us: float
    cpu_us: dict[str, float]
    of_first: list[float]
    more_cpu_us: dict[str, float]

    @classmethod
    def of(cls, contender: str, what: str, slices: Sequence[Slice], beside: Sequence[Slice]) -> Self:
        """Combine the slices of a contender.

        Args:
            slices: its own, one for each turn.
            beside: the first contender's slices; empty for itself.
        """
        pairs = list(zip(slices, beside, strict=True)) if beside else []
        roles = slices[0].cpu_us
        return cls(
            contender,
            what,
            len(slices),
            median(each.per_second for each in slices),
            median(each.p50_us for each in slices),
            {role: median(each.cpu_us[role] for each in slices) for role in roles},
            quantiles((own.per_second / other.per_second for own, other in pairs), n=4) if len(pairs) > 1 else [],
            {role: median(own.cpu_us[role] - other.cpu_us[role] for own, other in pairs) for role in roles}
            if pairs
            else {},
        )

    @property
    def more_cpu(self) -> float:
        """The additional CPU time of all processes, as a share of the first contender's CPU time."""
        more = sum(self.more_cpu_us.values())
        return more / (sum(self.cpu_us.values()) - more)

    def line(self, first: str) -> str:
        """Format the measurement.

        Args:
            first: the name of the first contender.
        """
        used = ", ".join(
            f"{role} {each:,.0f}" + (f" ({self.more_cpu_us[role]:+,.1f})" if self.more_cpu_us else "")
            for role, each in self.cpu_us.items()
        )
        ratio = ""
        if self.of_first:
            rates = " / ".join(f"{each:.2f}" for each in self.of_first)
            ratio = f"   CPU {self.more_cpu:+.1%}   rate of {first} {rates}"
        rate = f"{self.per_second:8,.1f}/s   p50 {self.p50_us:6,.0f} us"
        return f"{self.what:24} {self.contender:26} {rate}   CPU us: {used}{ratio}"


@dataclass(frozen=True)
class Contender:
    """A participant in the turns.

    Attributes:
        step: the operation to repeat.
        prepare: called before each turn, for example to switch a feature on.
    """

    target: Target
    step: Callable[[], None]
    prepare: Callable[[], None] = lambda: None


def take_turns(contenders: Mapping[str, Contender], seconds: float) -> dict[str, list[Slice]]:
    """Measure contenders alternately, each for about this time."""
    order = list(contenders)
    slices: dict[str, list[Slice]] = {name: [] for name in order}
    for _ in range(max(2, round(seconds / _SLICE_SECONDS))):
        for name in order:
            contender = contenders[name]
            contender.prepare()
            _repeat(contender.step, _SLICE_SECONDS * _WARM_UP_SHARE)
            slices[name].append(_measure(contender.target, contender.step))
        order.reverse()  # later contenders of a turn may find the caches colder, or the machine busier
    return slices


@contextmanager
def cluster_of_points(
    mongod: str, directory: Path, *, cache_gb: float, options: Sequence[str] = ()
) -> Iterator[tuple[OurCluster, "LoopClient"]]:
    """Run a cluster of one shard with documents to find, and connect to it."""
    with (
        running_cluster(mongod, directory, cache_gb=cache_gb, shards=1, more=options) as cluster,
        LoopClient.of(cluster) as client,
    ):
        shard = {"shardCollection": f"{DATABASE}.{_COLLECTION}", "key": {"key": 1}, "$db": "admin"}
        client.run(request(shard).data)
        documents = [{"key": key, "text": "x" * 100} for key in range(_DOCUMENTS)]
        client.run(request({"insert": _COLLECTION, "$db": DATABASE}, {"documents": documents}).data)
        yield cluster, client


def _measure(target: Target, step: Callable[[], None]) -> Slice:
    before, began = target.cpu_seconds(), time.perf_counter()
    latencies = _repeat(step, _SLICE_SECONDS)
    took, after = time.perf_counter() - began, target.cpu_seconds()
    cpu_us = {role: (after[role] - before[role]) / len(latencies) * 1e6 for role in after}
    return Slice(len(latencies) / took, median(latencies) * 1e6, cpu_us)


def _repeat(step: Callable[[], None], seconds: float) -> list[float]:
    deadline = time.perf_counter() + seconds
    latencies: list[float] = []
    while not latencies or time.perf_counter() < deadline:
        began = time.perf_counter()
        step()
        latencies.append(time.perf_counter() - began)
    return latencies


class LoopClient:
    """A connection to the router of a cluster, logged in if the cluster is closed.

    Args:
        user: name, database and password; None for an open cluster.
    """

    def __init__(self, target: Target, connection: socket.socket, user: tuple[str, str, bytes] | None) -> None:
        self.target = target
        self.user = user
        self._connection = connection
        self._replies: BinaryIO = connection.makefile("rb")
        self._keys: ScramKeys | None = None
        if user is not None:
            self._log_in(user)

    @classmethod
    def of(cls, cluster: OurCluster) -> Self:
        """Connect to a cluster's router."""
        host, _, port = cluster.target.address.rpartition(":")
        connection = socket.create_connection((host, int(port)), _TIMEOUT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls, access = cluster.document.get("tls"), cluster.document.get("auth")
        if tls is not None:
            context = ssl.create_default_context(cafile=tls["caFile"])
            context.load_cert_chain(tls["clientCertificateFile"])
            connection = context.wrap_socket(connection, server_hostname=host)
        if access is None:
            return cls(cluster.target, connection, None)
        password = Path(access["passwordFile"]).read_bytes().strip()
        return cls(cluster.target, connection, (access["user"], access["database"], password))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._connection.close()

    def run(self, frame: bytes) -> dict[str, Any]:
        """Send a request and return the body of its reply."""
        self._connection.sendall(frame)
        header = self._replies.read(4)
        reply = body_of(header + self._replies.read(int.from_bytes(header, "little") - 4))
        if reply.get("ok") != 1 or "writeErrors" in reply:
            raise BenchError(f"a command failed: {reply}")
        return reply

    def finding(self, *, in_session: bool) -> Callable[[], None]:
        """Return a function that finds one document by its shard key, each time another one."""
        session = {"lsid": {"id": Binary.from_uuid(uuid.uuid4())}} if in_session else {}
        common = {"limit": 1, "singleBatch": True, "$db": DATABASE, **session}
        frames = [request({"find": _COLLECTION, "filter": {"key": key}, **common}).data for key in range(_DOCUMENTS)]
        numbers = iter(range(1 << 62))

        def find() -> None:
            reply = self.run(frames[next(numbers) % _DOCUMENTS])
            if len(reply["cursor"]["firstBatch"]) != 1:
                raise BenchError(f"a document was not found: {reply}")

        return find

    def log_in_again(self) -> None:
        """Log out and in again; the keys of the password have been derived before."""
        assert self.user is not None
        self.run(request({"logout": 1, "$db": self.user[1]}).data)
        self._log_in(self.user)

    def _log_in(self, user: tuple[str, str, bytes]) -> None:
        name, database, password = user
        mechanism = Mechanism.SHA_256
        conversation = ClientConversation(name, base64.b64encode(os.urandom(24)))
        start = {"saslStart": 1, "mechanism": mechanism.value, "payload": conversation.first}
        reply = self.run(request({**start, "options": {"skipEmptyExchange": True}, "$db": database}).data)
        first = conversation.read(reply["payload"])
        if self._keys is None:
            self._keys = ScramKeys.derive(mechanism, password, first.salt, first.iterations)
        proof = conversation.prove(first, self._keys)
        go_on = {"saslContinue": 1, "conversationId": reply["conversationId"], "payload": proof, "$db": database}
        reply = self.run(request(go_on).data)
        conversation.verify(reply["payload"])
        if not reply["done"]:
            raise BenchError(f"the log-in is not complete: {reply}")
