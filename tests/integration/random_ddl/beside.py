"""Activity alongside the changes: chunks are moved and balanced, and zones change."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from random import Random
from threading import Event
from typing import Final

from bson import MaxKey, MinKey
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER, Document
from tests.local_cluster import Client

STABLE: Final = "stable"
"""A collection that is written to, balanced and moved, but not changed."""

FILLER: Final = "x" * 20_000
"""So that a few hundred documents are more than three chunks of a megabyte, and move."""

Task = Callable[[Event], None]


@contextmanager
def beside(*tasks: Task) -> Iterator[None]:
    """Run tasks during the block; they end soon after the event is set."""
    stop = Event()
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(task, stop) for task in tasks]
        try:
            yield
        finally:
            stop.set()
    for each in running:
        each.result()


@contextmanager
def balancing(client: Client) -> Iterator[None]:
    """The balancer runs during the block, and chunks are small; zones ``low`` and ``high`` are of one shard each."""
    admin, settings = client.admin, client.config.settings
    settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
    for shard, zone in ((LOWER, "low"), (UPPER, "high")):
        admin.command("addShardToZone", shard, zone=zone)
    admin.command("balancerStart")
    try:
        yield
    finally:
        admin.command("balancerStop")
        settings.delete_one({"_id": "chunksize"})
        for tag in list(client.config.tags.find({"tag": {"$in": ["low", "high"]}})):
            admin.command("updateZoneKeyRange", tag["ns"], min=tag["min"], max=tag["max"], zone=None)
        for shard, zone in ((LOWER, "low"), (UPPER, "high")):
            admin.command("removeShardFromZone", shard, zone=zone)


def move_chunks(client: Client, dbs: tuple[str, ...], random: Random, stop: Event) -> None:
    """Move random chunks of sharded collections; a move that conflicts with a change fails."""
    while not stop.wait(0.05):
        entry = _any_collection(client, dbs, random)
        chunks = list(client.config.chunks.find({"uuid": entry["uuid"]})) if entry else []
        if not chunks:
            continue
        chunk = random.choice(chunks)
        to = UPPER if chunk["shard"] == LOWER else LOWER
        try:
            client.admin.command("moveChunk", entry["_id"], bounds=[chunk["min"], chunk["max"]], to=to)
        except OperationFailure as failure:
            if failure.code == ErrorCode.InternalError:
                raise


def change_zones(client: Client, dbs: tuple[str, ...], random: Random, stop: Event) -> None:
    """Give half of the keys of a collection a zone, or take it away, so that the balancer splits and moves."""
    while not stop.wait(0.5):
        entry = _any_collection(client, dbs, random)
        if not entry or "hashed" in entry["key"].values():
            continue
        first, *rest = entry["key"]
        half = {first: 20, **dict.fromkeys(rest, MinKey())}
        low, high = (dict.fromkeys(entry["key"], end) for end in (MinKey(), MaxKey()))
        bounds = random.choice([(low, half), (half, high)])
        # The collection may be changed at this moment, or the other half may have a zone.
        with suppress(OperationFailure):
            zone = random.choice(["low", "high", None, None])
            client.admin.command("updateZoneKeyRange", entry["_id"], min=bounds[0], max=bounds[1], zone=zone)


def write_stable(client: Client, db: str, written: list[int], stop: Event) -> None:
    """Write to a collection that is never changed."""
    while not stop.wait(0.02):
        number = len(written)
        client[db][STABLE].insert_one({"_id": number, "a": number % 40, "filler": FILLER})
        written.append(number)


def _any_collection(client: Client, dbs: tuple[str, ...], random: Random) -> Document:
    pattern = "|".join(rf"^{db}\." for db in dbs)
    entries = list(client.config["collections"].find({"_id": {"$regex": pattern}}))
    return random.choice(entries) if entries else {}
