"""Counts of log-ins in ``serverStatus``: the same on a router as on a mongod."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from tests.access_control.conftest import PlainMongod
from tests.access_control.users import PASSWORD, SYSTEM, user_of
from tests.local_cluster import Client, RunningCluster, client_of

Counts = dict[tuple[str, str, str], int]

TRIES: Final[dict[str, dict[str, Any]]] = {
    "by the mechanism that it guesses": {"username": "reader", "password": PASSWORD},
    "by a mechanism of choice": {"username": "reader", "password": PASSWORD, "authMechanism": "SCRAM-SHA-1"},
    "with a wrong password": {"username": "reader", "password": "wrong"},
    "of nobody": {"username": "nobody", "password": PASSWORD},
    "of a database without SCRAM": {"username": "reader", "password": PASSWORD, "authSource": "$external"},
}


@pytest.mark.parametrize("given", TRIES.values(), ids=TRIES)
def test_a_log_in_counts_as_on_a_mongod(closed: RunningCluster, plain: PlainMongod, given: dict[str, Any]) -> None:
    with user_of(closed, "chief") as router, closing(plain.client("chief")) as mongod:
        on_router = counted(router, lambda: try_to_log_in(closed.address("router.0"), given))
        on_mongod = counted(mongod, lambda: try_to_log_in(plain.address, given))
    assert on_router == on_mongod
    assert on_mongod


@pytest.mark.parametrize("mechanism", ["MONGODB-X509", "PLAIN"])
def test_a_conversation_by_another_mechanism_counts_as_on_a_mongod(
    closed: RunningCluster, plain: PlainMongod, mechanism: str
) -> None:
    start = {"saslStart": 1, "mechanism": mechanism, "payload": b""}
    with user_of(closed, "chief") as router, closing(plain.client("chief")) as mongod:
        on_router, on_mongod = (
            counted(client, partial(client.admin.command, start, check=False)) for client in (router, mongod)
        )
    assert on_router == on_mongod


def test_a_part_of_the_cluster_is_counted_as_such(closed: RunningCluster) -> None:
    key = "".join(Path(closed.document["auth"]["keyFile"]).read_text().split())
    given = {"username": SYSTEM, "password": key, "authSource": "local", "authMechanism": "SCRAM-SHA-256"}
    with user_of(closed, "chief") as router:
        seen = counted(router, lambda: try_to_log_in(closed.address("router.0"), given))
    assert seen["SCRAM-SHA-256", "clusterAuthenticate", "successful"] == 1
    assert seen["SCRAM-SHA-256", "authenticate", "successful"] == 1


def counted(client: Client, act: Callable[[], object]) -> Counts:
    """Return the counts that an action adds, including counts of requested mechanisms."""
    before = counts(client)
    act()
    return {key: count - before[key] for key, count in counts(client).items() if count != before[key]}


def counts(client: Client) -> Counts:
    section = client.admin.command("serverStatus")["security"]["authentication"]
    found = {
        (mechanism, kind, outcome): count
        for mechanism, kinds in section["mechanisms"].items()
        for kind, outcomes in kinds.items()
        for outcome, count in outcomes.items()
    }
    return {**found, ("", "asked", ""): section["saslSupportedMechsReceived"]}


def try_to_log_in(address: str, given: dict[str, Any]) -> None:
    """Log in once, whether that succeeds or not."""
    with client_of(address, retryReads=False, **given) as client:
        try:
            client.admin.command("ping")
        except OperationFailure as error:
            print(f"{given['username']} is refused: {error}")
