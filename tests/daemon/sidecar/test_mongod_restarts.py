"""A daemon whose mongod stops and restarts."""

import signal
import time
from pathlib import Path

import pytest
from pymongo.errors import AutoReconnect

from tests.shardd.mini_cluster import Client, replica_set


def wait_until_writable(client: Client) -> None:
    """Write until it succeeds; the driver itself waits for a primary, up to its server selection timeout."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client.db.c.insert_one({})
        except AutoReconnect:
            assert time.monotonic() < deadline
        else:
            return


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_clients_are_closed_with_the_mongod_and_served_when_it_is_back(tmp_path: Path, number: signal.Signals) -> None:
    with replica_set(tmp_path) as alone:
        (member,) = alone.members
        with alone.client(retryReads=False, retryWrites=False, serverSelectionTimeoutMS=2_000) as client:
            client.db.c.insert_one({"_id": "before"})
            member.mongod.stop(number)
            with pytest.raises(AutoReconnect):
                client.db.c.find_one()
            member.mongod.start()
            wait_until_writable(client)
            assert client.db.c.find_one({"_id": "before"}) is not None
