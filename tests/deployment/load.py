"""Writes through the routers with a driver's defaults until its standard input ends: ``load.py URI NAME``.

It prints one line at the beginning, and at the end a JSON document with acknowledged and failed writes.
"""

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.monitoring import (
    TopologyClosedEvent,
    TopologyDescriptionChangedEvent,
    TopologyListener,
    TopologyOpenedEvent,
)

Client = MongoClient[dict[str, Any]]
THREADS = 2


class RoutersFound(TopologyListener):
    """Waits until the driver has found all routers, as in an application that has run for a while.

    A driver that knows one router only has none to repeat an operation on.
    """

    def __init__(self) -> None:
        self._found = threading.Event()

    def opened(self, event: TopologyOpenedEvent) -> None:
        """See `TopologyListener`."""

    def description_changed(self, event: TopologyDescriptionChangedEvent) -> None:
        """See `TopologyListener`."""
        servers = event.new_description.server_descriptions().values()
        if servers and all(server.is_server_type_known for server in servers):
            self._found.set()

    def closed(self, event: TopologyClosedEvent) -> None:
        """See `TopologyListener`."""

    def wait(self) -> None:
        """Wait until they are found."""
        assert self._found.wait(60), "the driver has not found all routers"


class Load:
    """Inserts and transactions.

    Args:
        client: of the routers.
        name: of this load, for its documents.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._ends = threading.Event()
        self.errors: list[str] = []
        self.inserted: list[int] = []
        self.transferred: list[int] = []

    def run(self) -> None:
        """Write until standard input ends."""
        self._client.shop.command("ping")
        first = self._client.shop.orders.insert_one({"by": self._name, "number": -1})
        assert first.acknowledged
        threads = [
            threading.Thread(target=self._repeat, args=(work, number, done))
            for number in range(THREADS)
            for work, done in ((self._insert, self.inserted), (self._transfer, self.transferred))
        ]
        for thread in threads:
            thread.start()
        print("started", flush=True)
        sys.stdin.read()
        self._ends.set()
        for thread in threads:
            thread.join()

    def _repeat(self, work: Callable[[int], None], number: int, done: list[int]) -> None:
        while not self._ends.is_set():
            try:
                work(number)
            except PyMongoError as error:
                self.errors.append(f"{work.__qualname__} {number}: {error!r}"[:500])
            else:
                done.append(number)
            number += THREADS
            self._ends.wait(0.02)

    def _insert(self, number: int) -> None:
        self._client.shop.orders.insert_one({"by": self._name, "number": number})

    def _transfer(self, number: int) -> None:
        """Two documents that are there together or not at all."""

        def both(session: ClientSession) -> None:
            for side in ("from", "to"):
                document = {"by": self._name, "number": number, "side": side}
                self._client.shop.transfers.insert_one(document, session=session)

        with self._client.start_session() as session:
            session.with_transaction(both)


def main() -> None:
    """Run the load and print the result."""
    uri, name = sys.argv[1:]
    routers = RoutersFound()
    with Client(uri, event_listeners=[routers]) as client:
        routers.wait()
        load = Load(client, name)
        load.run()
        orders = {each["number"] for each in client.shop.orders.find({"by": name})}
        transfers = [each["number"] for each in client.shop.transfers.find({"by": name})]
    print(
        json.dumps(
            {
                "inserts": len(load.inserted),
                "transactions": len(load.transferred),
                "errors": load.errors,
                "lostInserts": sorted(set(load.inserted) - orders),
                "lostTransactions": [number for number in load.transferred if transfers.count(number) != 2],
                "halves": sorted({number for number in transfers if transfers.count(number) != 2}),
            }
        )
    )


if __name__ == "__main__":
    main()
