"""Inserts documents at a fixed rate until it is killed: ``python -m bench.paced_writer ADDRESS LOWEST_KEY``.

A late write does not delay later ones: each thread catches up with its schedule.
"""

import random
import sys
import threading
import time
from typing import Final

from bench.workloads import DATABASE, DOCUMENTS, STREAM_COLLECTION
from shardwright.deploy.mongod import connect

EVENTS_PER_SECOND: Final = 1_000

_THREADS: Final = 16
_COMMAND_SECONDS: Final = 60.0


def main(address: str, lowest_key: int) -> None:
    """Insert, on several connections; the keys are random, from ``lowest_key`` up."""
    for number in range(_THREADS):
        threading.Thread(target=_insert, args=(address, lowest_key, number)).start()


def _insert(address: str, lowest_key: int, number: int) -> None:
    interval = _THREADS / EVENTS_PER_SECOND
    due = time.monotonic() + interval * number / _THREADS
    keys = random.Random(number)
    with connect(address, _COMMAND_SECONDS) as client:
        collection = client[DATABASE].get_collection(STREAM_COLLECTION)
        while True:
            time.sleep(max(due - time.monotonic(), 0))
            due += interval
            collection.insert_one({"key": keys.randrange(lowest_key, DOCUMENTS), "sent": time.monotonic()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
