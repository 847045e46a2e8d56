"""States of the target while it follows, compared with the invariants of every state of the source."""

import json
import random
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

from bson import decode
from bson.codec_options import CodecOptions
from bson.json_util import loads
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from tests.sync.running import Client, Ends, Progress, SyncProcess
from tests.sync.writers import COUNTED, DATABASE, TOTAL

MOMENTS: Final = 20
STEADY: Final = ("items", "accounts", *COUNTED)
"""The collections that no DDL touches, so that they can be read at any moment."""

_BATCH: Final = 100_000
_PAUSE_SECONDS_MAX: Final = 0.3
_RAW: Final = CodecOptions(document_class=RawBSONDocument)


def progress_now(process: SyncProcess) -> Progress:
    """The progress at this moment, from the API: standard output has it once a second."""
    with urllib.request.urlopen(f"{_api(process)}/progress") as answer:
        found: Progress = loads(answer.read())["progress"]
    return found


def pause_now(process: SyncProcess) -> None:
    """Pause at this moment, through the API: the command would take a second to start."""
    with urllib.request.urlopen(urllib.request.Request(f"{_api(process)}/pause", b"{}", method="POST")) as answer:
        assert answer.status == 200


def _api(process: SyncProcess) -> str:
    published = process.directory / "shardwright" / "sync" / f"{process.id}.json"
    port = json.loads(published.read_text(encoding="utf-8"))["port"]
    return f"http://127.0.0.1:{port}/api/v1"


def read_at(client: Client, moment: Timestamp) -> dict[str, list[bytes]]:
    """The documents of the steady collections at a cluster time, in the order of their bytes."""
    found = {}
    for name in STEADY:
        concern = {"level": "snapshot", "atClusterTime": moment}
        command = {"find": name, "batchSize": _BATCH, "readConcern": concern}
        database: Any = client.get_database(DATABASE, codec_options=_RAW)
        reply = database.command(command, codec_options=_RAW)
        assert reply["cursor"]["id"] == 0, f"{name} has more than one batch"
        found[name] = sorted(bytes(each.raw) for each in reply["cursor"]["firstBatch"])
    return found


def check_invariants(state: dict[str, list[bytes]]) -> None:
    """Check the invariants of every state of the source."""
    decoded = {name: [dict(RawBSONDocument(each)) for each in state[name]] for name in ("accounts", *COUNTED)}
    assert sum(each["balance"] for each in decoded["accounts"]) == TOTAL
    first, second = [{each["_id"]: each["n"] for each in decoded[name]} for name in COUNTED]
    ahead = {writer: first[writer] - second[writer] for writer in first}
    assert set(ahead.values()) <= {0, 1}, (first, second)


def check_moment(ends: Ends, progress: Progress, *, reads_source: bool = True) -> None:
    """The target was a state of the source at its last consistent time.

    Args:
        ends: both.
        progress: has the time.
        reads_source: whether the source can still be read at that time: not if chunks were moved since.
    """
    moment = progress["lastConsistentTime"]
    state = read_at(ends.target, moment["target"])
    check_invariants(state)
    if reads_source:
        wanted = read_at(ends.source, moment["source"])
        if ends.source.config["collections"].find_one({"_id": f"{DATABASE}.accounts"}) is not None:
            # A snapshot has a transaction on several shards from the time of its commit, which is before its events.
            del state["accounts"], wanted["accounts"]
        assert not differences(state, wanted), moment


def differences(state: dict[str, list[bytes]], wanted: dict[str, list[bytes]]) -> dict[str, dict[str, list[Any]]]:
    """The documents that only the target or only the source has, by collection; without the equal collections."""
    found = {}
    for name in state:
        sides = {"target": (state[name], wanted[name]), "source": (wanted[name], state[name])}
        only = {
            side: [decode(each) for each in sorted(set(here) - set(there))] for side, (here, there) in sides.items()
        }
        if state[name] != wanted[name]:
            found[name] = only
    return found


def random_moments(process: SyncProcess, seed: int, count: int = MOMENTS) -> Iterator[Progress]:
    """The progress at random moments, each with another last consistent time; the replication follows."""
    choose = random.Random(seed)
    last: Any = None
    while count:
        time.sleep(choose.uniform(0, _PAUSE_SECONDS_MAX))
        progress = progress_now(process)
        if progress.get("lastConsistentTime") not in (None, last):
            last = progress["lastConsistentTime"]
            count -= 1
            yield progress
