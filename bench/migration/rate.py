"""The throughput of migrations, compared with a raw copy of the same documents."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from bench.loadgen import BenchError
from bench.memory import PeakMemory
from bench.migration.clusters import MovingCluster
from bench.migration.data import DOCUMENT_BYTES, batches, insert_documents
from bench.targets import cpu_seconds
from bench.workloads import DATABASE
from shardwright.deploy.mongod import connect

_COPY_BATCH: Final = 1_000
_COMMAND_SECONDS: Final = 600.0
_RAW: Final = CodecOptions(document_class=RawBSONDocument)


@dataclass(frozen=True)
class Move:
    """One measurement.

    Attributes:
        documents: number of documents moved or copied.
        cpu_seconds: CPU time of both mongods, and of the daemons alongside.
        peak_memory: peak memory of the daemons, in bytes.
    """

    documents: int
    seconds: float
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def documents_per_second(self) -> float:
        """Documents per second."""
        return self.documents / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Millions of bytes per second."""
        return self.documents_per_second * DOCUMENT_BYTES / 1e6

    def to_document(self) -> dict[str, Any]:
        """Return the document for the results."""
        rates = {
            "documents_per_second": self.documents_per_second,
            "megabytes_per_second": self.megabytes_per_second,
        }
        return asdict(self) | rates


def prepare(cluster: MovingCluster, collection: str, documents: int) -> None:
    """Create a collection on the donor with a range of ``documents`` documents to move."""
    cluster.shard_collection(collection)
    insert_documents(cluster.mongods[0], collection, documents)


def move(cluster: MovingCluster, collection: str, documents: int) -> Move:
    """Move the range, and check that the documents have arrived."""
    try:
        moved = measured(cluster, documents, lambda: cluster.move_range(collection, documents))
    except PyMongoError as error:
        raise BenchError(f"{cluster.target.name} could not move {documents:,} documents: {error}") from error
    with connect(cluster.mongods[1], _COMMAND_SECONDS) as recipient:
        arrived = recipient[DATABASE][collection].estimated_document_count()
    if arrived != documents:
        raise BenchError(f"{cluster.target.name} moved {arrived:,} documents instead of {documents:,}")
    return moved


def measured(cluster: MovingCluster, documents: int, change: Callable[[], None]) -> Move:
    """Measure any change that moves this number of documents between the shards of a cluster."""
    before = _cpu_seconds(cluster)
    with PeakMemory(cluster.daemons) as memory:
        started = time.perf_counter()
        change()
        seconds = time.perf_counter() - started
    used = {role: after - before[role] for role, after in _cpu_seconds(cluster).items()}
    return Move(documents, seconds, used, memory.peak)


def _cpu_seconds(cluster: MovingCluster) -> dict[str, float]:
    return {role: cpu_seconds(pid) for role, pid in {**cluster.servers, **cluster.daemons}.items()}


def raw_copy(cluster: MovingCluster, collection: str, documents: int) -> Move:
    """Copy the same documents from mongod to mongod with one cursor and ``insertMany``."""
    copy = f"{collection}_copy"
    with (
        connect(cluster.mongods[0], _COMMAND_SECONDS) as donor,
        connect(cluster.mongods[1], _COMMAND_SECONDS) as recipient,
    ):
        source = donor[DATABASE].get_collection(collection, codec_options=_RAW)
        target = recipient[DATABASE][copy]
        target.create_index("key")
        before = _cpu_seconds(cluster)
        try:
            started = time.perf_counter()
            cursor = source.find({"key": {"$lt": documents}}, sort={"key": 1}, hint={"key": 1})
            for batch in batches(cursor, _COPY_BATCH):
                target.insert_many(batch)
            seconds = time.perf_counter() - started
            used = {role: cpu_seconds(pid) - before[role] for role, pid in cluster.servers.items()}
            target.drop()
        except PyMongoError as error:
            raise BenchError(f"the documents could not be copied: {error}") from error
    return Move(documents, seconds, used)
