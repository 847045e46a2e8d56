"""What access control and TLS cost a whole cluster: point finds and log-ins on an open, a closed and a secured one.

A closed loop on one connection, which takes turns between the clusters. Every reply is checked. What the router alone
needs is in `bench.access` and `bench.tls`.
"""

import base64
import os
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Final, Self

from bson.binary import Binary

from bench.cluster import OurCluster, running_cluster
from bench.loadgen import BenchError
from bench.plan import body_of, request
from bench.targets import Target
from bench.workloads import DATABASE
from shardwright.wire.scram.client import ClientConversation
from shardwright.wire.scram.keys import Mechanism, ScramKeys

OPEN: Final = "open"
CLOSED: Final = "closed"
SECURED: Final = "closed, with TLS"

_OPTIONS: Final[dict[str, tuple[str, ...]]] = {OPEN: (), CLOSED: ("--auth",), SECURED: ("--auth", "--tls")}
_COLLECTION: Final = "points"
_DOCUMENTS: Final = 1_000
_WARM_UP_SHARE: Final = 0.25
_TIMEOUT_SECONDS: Final = 60.0
_FIND: Final = "point find"
_FIND_IN_SESSION: Final = "point find in a session"
_LOG_IN: Final = "log-in"


@dataclass(frozen=True)
class Cost:
    """One measurement.

    Attributes:
        what: what was repeated.
        per_second: how often.
        p50_us: the median of the latencies, in microseconds.
        cpu_us: CPU time for each, by process, in microseconds.
    """

    cluster: str
    what: str
    per_second: float
    p50_us: float
    cpu_us: dict[str, float]


def measure_closed(
    mongod: str, directory: Path, *, rounds: int, seconds: float, cache_gb: float
) -> list[dict[str, Any]]:
    """Measure the three kinds of clusters in turn, and print the results.

    Raises:
        BenchError: a cluster does not start, or a reply is wrong.
    """
    print("\nan open cluster, a closed one, and one with TLS, on one connection", flush=True)
    results = []
    with ExitStack() as running:
        clients = {
            name: running.enter_context(_client(mongod, directory / f"closed{number}", cache_gb, options))
            for number, (name, options) in enumerate(_OPTIONS.items())
        }
        for _ in range(rounds):
            for what in (_FIND, _FIND_IN_SESSION, _LOG_IN):
                for name, client in clients.items():
                    if what == _LOG_IN and client.user is None:
                        continue
                    cost = _measure(name, client, what, seconds)
                    results.append(cost)
                    cpu = ", ".join(f"{role} {each:,.0f}" for role, each in cost.cpu_us.items())
                    print(
                        f"  {what:24} {name:18} {cost.per_second:8,.1f}/s   p50 {cost.p50_us:6,.0f} us   CPU us: {cpu}",
                        flush=True,
                    )
    return [asdict(result) for result in results]


@contextmanager
def _client(mongod: str, directory: Path, cache_gb: float, options: Sequence[str]) -> Iterator["_Client"]:
    with (
        running_cluster(mongod, directory, cache_gb=cache_gb, shards=1, more=options) as cluster,
        _Client.of(cluster) as client,
    ):
        shard = {"shardCollection": f"{DATABASE}.{_COLLECTION}", "key": {"key": 1}, "$db": "admin"}
        client.run(request(shard).data)
        documents = [{"key": key, "text": "x" * 100} for key in range(_DOCUMENTS)]
        client.run(request({"insert": _COLLECTION, "$db": DATABASE}, {"documents": documents}).data)
        yield client


def _measure(name: str, client: "_Client", what: str, seconds: float) -> Cost:
    step = client.log_in_again if what == _LOG_IN else client.finding(in_session=what == _FIND_IN_SESSION)
    _repeat(step, seconds * _WARM_UP_SHARE)
    before, began = client.target.cpu_seconds(), time.perf_counter()
    latencies = _repeat(step, seconds)
    took, after = time.perf_counter() - began, client.target.cpu_seconds()
    cpu_us = {role: (after[role] - before[role]) / len(latencies) * 1e6 for role in after}
    return Cost(name, what, len(latencies) / took, median(latencies) * 1e6, cpu_us)


def _repeat(step: Callable[[], None], seconds: float) -> list[float]:
    deadline = time.perf_counter() + seconds
    latencies: list[float] = []
    while not latencies or time.perf_counter() < deadline:
        began = time.perf_counter()
        step()
        latencies.append(time.perf_counter() - began)
    return latencies


class _Client:
    """A connection to the router of a cluster, logged in if the cluster is closed.

    Args:
        target: the cluster.
        connection: to its router.
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
        """Connect to a cluster's router.

        Raises:
            BenchError: the router refuses the user.
        """
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
        """Send a request and return the body of its reply.

        Raises:
            BenchError: it failed.
        """
        self._connection.sendall(frame)
        header = self._replies.read(4)
        reply = body_of(header + self._replies.read(int.from_bytes(header, "little") - 4))
        if reply.get("ok") != 1 or "writeErrors" in reply:
            raise BenchError(f"a command failed: {reply}")
        return reply

    def finding(self, *, in_session: bool) -> Callable[[], None]:
        """Finds one document by its shard key, each time another one."""
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
