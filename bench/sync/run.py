"""Measurements of a replication; source and target are always on this machine."""

import argparse
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from bson.timestamp import Timestamp
from pymongo import MongoClient, UpdateOne
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from bench.change_streams import delays_of
from bench.cluster import running_cluster
from bench.memory import PeakMemory
from bench.mongods import primary_mongod
from bench.sync.process import SyncProcess
from bench.targets import cpu_seconds
from bench.workloads import DATABASE, STREAM_COLLECTION
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role

COLLECTION: Final = "documents"
DOCUMENT_BYTES: Final = 1_000
LARGE_BYTES: Final = 1_000_000
LARGE_DOCUMENTS: Final = 400
EVENTS: Final = 50_000
COMMITS: Final = 20
WRITES_PER_SECOND: Final = 200
BATCH: Final = 1_000

_MAJORITY: Final = WriteConcern("majority")
_USER_WRITES_BLOCKED: Final = 371

Client = MongoClient[dict[str, Any]]


def measure_sync(options: argparse.Namespace, mongod: str, directory: Path) -> dict[str, Any]:
    """Make the measurements, print them, and return the document for the results."""
    share = 20 if options.quick else 1
    found: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    print(f"\nsync: load of the machine before {found['load_average']:.1f}", flush=True)
    with _ends(options, mongod, directory) as ends:
        for name, measure in (
            ("copy", lambda: ends.copies(options.documents, options.rounds)),
            ("events", lambda: ends.events(EVENTS // share)),
            ("lag", lambda: ends.lag(options.seconds * 10)),
            ("memory", lambda: ends.memory(LARGE_DOCUMENTS // share)),
            ("pause", lambda: ends.pauses(max(COMMITS // share, 2))),
        ):
            found[name] = measure()
            print(f"  {name}: {found[name]}", flush=True)
    return found


@contextmanager
def _ends(options: argparse.Namespace, mongod: str, directory: Path) -> Iterator["_Ends"]:
    with ExitStack() as running:
        uris = [running.enter_context(_replica_set(mongod, directory, each, options)) for each in ("source", "target")]
        cluster = running.enter_context(running_cluster(mongod, directory / "cluster", cache_gb=options.cache_gb))
        uris.append(f"mongodb://{cluster.address('router.0')}/")
        clients = [running.enter_context(MongoClient[dict[str, Any]](each)) for each in uris]
        yield _Ends(directory, uris, clients)


@contextmanager
def _replica_set(mongod: str, directory: Path, name: str, options: argparse.Namespace) -> Iterator[str]:
    with PortReservation() as ports:
        plan = ProcessPlan(name, Role.MONGOD, ports.hold_free(), name)
        ports.release(*plan.ports())
        with primary_mongod(mongod, plan, directory / name, options.cache_gb):
            yield f"mongodb://{plan.address}/?replicaSet={name}"


class _Ends:
    """A replica set as source, and a replica set and a cluster as targets."""

    def __init__(self, directory: Path, uris: list[str], clients: list[Client]) -> None:
        self._directory, self._uris, self._clients = directory, uris, clients
        self._number = 0

    def copies(self, documents: int, rounds: int) -> list[dict[str, int]]:
        """Measure documents per second of copies to each target, compared with a raw copy and mongodump.

        The CPU time of the copying process, in microseconds per document, depends less on other load of the machine.
        """
        self._empty()
        _insert(self._clients[0], documents)
        found = []
        for _ in range(rounds):
            each: dict[str, float] = {}
            for number, name in ((1, "replica set"), (2, "cluster")):
                self._empty(targets_only=True)
                before = time.process_time()
                each[f"raw copy to the {name}"] = documents / _raw_copy(self._clients[0], self._clients[number])
                each[f"raw copy to the {name}, CPU us"] = (time.process_time() - before) / documents * 1e6
                self._empty(targets_only=True)
                seconds, cpu = self._copy(number, documents)
                each[f"sync to the {name}"] = documents / seconds
                each[f"sync to the {name}, CPU us"] = cpu / documents * 1e6
            if (dumped := self._dumped()) is not None:
                each["mongodump | mongorestore to the replica set"] = documents / dumped
            found.append({name: round(rate) for name, rate in each.items()})
        return found

    def events(self, events: int) -> dict[str, int]:
        """Measure the events applied per second while the source is far ahead."""
        self._empty()
        _insert(self._clients[0], BATCH)
        with self._syncing(1) as process:
            process.wait(lambda progress: progress["canCommit"])
            found = {}
            for name, write in (("inserts", _insert), ("updates", _update)):
                before = process.progress()["eventsApplied"]
                process.post("pause")
                write(self._clients[0], events)
                began = time.monotonic()
                process.post("resume")
                ended, _ = process.wait(lambda progress, wanted=before + events: progress["eventsApplied"] >= wanted)  # type: ignore[misc]
                found[name] = round(events / (ended - began))
            return found

    def lag(self, seconds: float) -> dict[str, Any]:
        """Measure the delay from the sending of a write at the source to its event in a change stream of the target."""
        self._empty()
        source, target = self._clients[:2]
        source[DATABASE].create_collection(STREAM_COLLECTION)
        with self._syncing(1) as process:
            process.wait(lambda progress: progress["canCommit"])
            address = self._uris[0].removeprefix("mongodb://").partition("/")[0]
            collection = target[DATABASE].get_collection(STREAM_COLLECTION, codec_options=DEFAULT_RAW_BSON_OPTIONS)
            delays = sorted(delays_of(collection, address, seconds))
        return {
            "writes_per_second": round(len(delays) / seconds),
            "p50_ms": round(delays[len(delays) // 2] * 1000),
            "p99_ms": round(delays[len(delays) * 99 // 100] * 1000),
            "max_ms": round(delays[-1] * 1000),
        }

    def memory(self, documents: int) -> dict[str, int]:
        """Measure peak resident megabytes while documents of a megabyte are copied, and followed."""
        self._empty()
        source = self._clients[0][DATABASE][COLLECTION]
        for number in range(documents):
            source.insert_one({"_id": number, "data": random.Random(number).randbytes(LARGE_BYTES)})
        with self._syncing(1) as process, PeakMemory({"sync": process.pid}) as memory:
            process.wait(lambda progress: progress["canCommit"])
            copied = memory.peak["sync"]
            for number in range(documents):
                source.update_one({"_id": number}, {"$set": {"data": random.Random(-number).randbytes(LARGE_BYTES)}})
            self._wait_followed(process)
        return {"copy": copied // 1_000_000, "follow": memory.peak["sync"] // 1_000_000}

    def pauses(self, commits: int) -> dict[str, Any]:
        """Measure the seconds for which applications can write at neither end, in successive commits."""
        self._empty()
        _insert(self._clients[0], BATCH)
        found = []
        with self._syncing(1, "--reversible") as process:
            for number in range(commits):
                process.wait(lambda progress: progress["canCommit"] and progress["verification"]["complete"])
                with _writing(self._clients[number % 2]):
                    process.post("commit")
                    _, progress = process.wait(lambda progress: progress["state"] == "COMMITTED")
                found.append(progress["pauseSeconds"])
                process.post("reverse")
                process.wait(lambda progress: progress["state"] == "RUNNING")
        found.sort()
        return {"commits": commits, "p50": found[len(found) // 2], "max": found[-1]}

    def _copy(self, number: int, documents: int) -> tuple[float, float]:
        """Return the seconds of a copy, and the CPU seconds that the process has used for it."""
        with self._syncing(number) as process:
            began, _ = process.wait(lambda progress: True)
            before = cpu_seconds(process.pid)
            ended, _ = process.wait(
                lambda progress: progress.get("collectionCopy", {}).get("copiedDocuments", 0) >= documents
            )
            return ended - began, cpu_seconds(process.pid) - before

    def _dumped(self) -> float | None:
        """Return the seconds of ``mongodump | mongorestore``; None if they are not installed."""
        if shutil.which("mongodump") is None or shutil.which("mongorestore") is None:
            return None
        self._empty(targets_only=True)
        began = time.monotonic()
        dump = ["mongodump", "--quiet", f"--uri={self._uris[0]}", f"--db={DATABASE}", "--archive"]
        restore = ["mongorestore", "--quiet", f"--uri={self._uris[1]}", "--archive"]
        with subprocess.Popen(dump, stdout=subprocess.PIPE) as dumping:
            subprocess.run(restore, stdin=dumping.stdout, check=True)
        return time.monotonic() - began

    def _syncing(self, number: int, *options: str) -> SyncProcess:
        self._number += 1
        return SyncProcess(self._directory / f"sync{self._number}", self._uris[0], self._uris[number], *options)

    def _wait_followed(self, process: SyncProcess) -> None:
        now: Timestamp = self._clients[0].admin.command("ping")["operationTime"]
        process.wait(lambda progress: (progress["lastConsistentTime"] or {}).get("source", Timestamp(0, 0)) >= now)

    def _empty(self, *, targets_only: bool = False) -> None:
        for client in self._clients:
            client.admin.command({"setUserWriteBlockMode": 1, "global": False})
        for client in self._clients[1 if targets_only else 0 :]:
            client.drop_database(DATABASE)
        for client in self._clients:
            client.drop_database("shardwright")


def _insert(client: Client, documents: int) -> None:
    """Add documents of `DOCUMENT_BYTES`."""
    choose = random.Random(documents)
    for start in range(0, documents, BATCH):
        many = [{"n": each, "data": choose.randbytes(DOCUMENT_BYTES)} for each in range(start, start + BATCH)]
        client[DATABASE][COLLECTION].insert_many(many[: documents - start], ordered=False)


def _update(client: Client, updates: int) -> None:
    """Update documents, one write each."""
    collection = client[DATABASE][COLLECTION]
    ids = [each["_id"] for each in collection.find({}, {"_id": 1}).limit(updates)]
    for start in range(0, updates, BATCH):
        some = ids[start : start + BATCH]
        collection.bulk_write([UpdateOne({"_id": each}, {"$inc": {"n": 1}}) for each in some], ordered=False)


def _raw_copy(source: Client, target: Client) -> float:
    """Return the seconds of a copy with one cursor, whose documents stay bytes."""
    began = time.monotonic()
    read = source[DATABASE].get_collection(COLLECTION, codec_options=DEFAULT_RAW_BSON_OPTIONS)
    written = target[DATABASE].get_collection(COLLECTION, write_concern=_MAJORITY)
    batch: list[Any] = []
    with read.find(batch_size=BATCH) as cursor:
        for document in cursor:
            batch.append(document)
            if len(batch) == BATCH:
                written.insert_many(batch, ordered=False)
                batch = []
    if batch:
        written.insert_many(batch, ordered=False)
    return time.monotonic() - began


@contextmanager
def _writing(client: Client) -> Iterator[None]:
    """Write at one end during the block, until that end is blocked."""
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(1 / WRITES_PER_SECOND):
            number += 1
            try:
                client[DATABASE][COLLECTION].insert_one({"n": number})
            except OperationFailure as error:
                if error.code != _USER_WRITES_BLOCKED:
                    raise
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
