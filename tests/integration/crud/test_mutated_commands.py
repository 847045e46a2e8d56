"""Mutated commands are answered as by a mongod: without internal errors, and the connection stays open."""

import json
import os
import secrets
from collections.abc import Callable

import bson
import pytest

from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import decode_document
from tests.integration.commands_to_mutate import (
    WRITES,
    about_the_server,
    of_config_servers,
    of_participants,
    of_routers,
    of_shards,
    reads_and_writes,
)
from tests.integration.mutations import Mutations
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import Document, Documents
from tests.local_cluster import RunningCluster
from tests.sampling import many

COMMANDS = int(os.environ.get("MUTATED_COMMANDS", many(1500, 500)))
"""Number of commands sent to each daemon."""

REPLY_SECONDS_MAX = 90.0
"""Some wait until a server that does not exist has been looked for in vain."""

PING = bson.encode({"ping": 1, "$db": "admin"})
INTERNAL_ERROR = 1


def ask(client: RawClient, body: bytes) -> Document | None:
    """The reply to a command; None if the server closes the connection instead."""
    client.send(op_msg(body, request_id=1))
    frame = client.receive()
    return decode_document(frame[21:]) if frame else None


def for_router(collection: Documents) -> list[Document]:
    db, name = collection.database.name, collection.name
    return [*reads_and_writes(db, name), *reads_and_writes(db, "unsharded"), *of_routers(f"{db}.none")]


def for_shard(collection: Documents) -> list[Document]:
    db = collection.database.name
    return [*reads_and_writes("mutated", "direct"), *of_shards(db, "none"), *of_participants("mutated")]


def for_config_server(collection: Documents) -> list[Document]:
    catalog = [command for command in reads_and_writes("config", "chunks") if next(iter(command)) not in WRITES]
    return [*catalog, *of_config_servers(f"{collection.database.name}.none")]


@pytest.mark.parametrize(
    ("process", "commands_for"),
    [
        ("router.0", for_router),
        ("shard0.0.shardd", for_shard),
        ("config.0.configd", for_config_server),
    ],
)
def test_mutated_commands(
    cluster: RunningCluster, ranged: Documents, process: str, commands_for: Callable[[Documents], list[Document]]
) -> None:
    ranged.insert_many({"key": key, "a": key} for key in (1, 2, 501, 502))
    seed = 20260101 if "CI" in os.environ else secrets.randbits(32)
    mutations = Mutations(seed)
    bodies = [(next(iter(command)), bson.encode(command)) for command in [*commands_for(ranged), *about_the_server()]]
    logged_before = len(cluster.log(process))
    failures: list[str] = []
    with raw_client(cluster.address(process)) as client:
        client.socket.settimeout(REPLY_SECONDS_MAX)
        for number in range(COMMANDS):
            name, body = bodies[number % len(bodies)]
            mutated = mutations.of(body, keeps_target=name in WRITES)
            try:
                reply = ask(client, mutated)
            except TimeoutError:
                failures.append(f"{name}: no reply: {mutated!r}")
                break
            if reply is None:
                failures.append(f"{name}: connection closed: {mutated!r}")
                break
            if reply.get("code") == INTERNAL_ERROR:
                failures.append(f"{name}: {reply['errmsg']}: {mutated!r}")
                break
        else:
            assert ask(client, PING) is not None
    with cluster.direct("shard0.0.mongod") as mongod:
        mongod.drop_database("mutated")  # of which the catalog knows nothing
    lines = [json.loads(line) for line in cluster.log(process)[logged_before:].splitlines()]
    failures += [line["traceback"] for line in lines if "traceback" in line]
    assert not failures, f"seed {seed}: {failures}"
