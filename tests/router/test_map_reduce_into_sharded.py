"""``mapReduce`` into sharded collections: the contents that a mongod's unsharded output has."""

from typing import Final

import pytest
from pymongo.database import Database

from tests.integration.routers import extra_router
from tests.integration.sharded import Document, shard_by_range
from tests.local_cluster import Client, RunningCluster, client_of
from tests.router.test_map_reduce import FINALIZE, MAP, REDUCE, STORED, Command

DB: Final = "map_reduce_into_sharded"
OUT_TO_SHARDED: Final = 28769
KEY_OTHER_THAN_ID: Final = 31313

OUTPUTS: Final[dict[str, Command]] = {
    "merging": {"out": {"merge": "o"}},
    "merging into what has to be sharded": {"out": {"merge": "o", "sharded": True}},
    "merging and finalizing": {"out": {"merge": "o"}, "finalize": FINALIZE},
    "reducing": {"out": {"reduce": "o"}},
    "reducing and finalizing": {
        "out": {"reduce": "o"},
        "finalize": "function(key, value) { return -value; }",
    },
}


def prepare(database: Database[Document], *, sharded: bool) -> None:
    """The documents in ``c`` and an output collection with results for a group on each shard and for no group."""
    database.c.drop()
    database.o.drop()
    if sharded:
        shard_by_range(database, "c", key="_id")
        shard_by_range(database, "o", key="_id", split_at=2.5)
    database.c.insert_many(STORED)
    database.o.insert_many([{"_id": key, "value": 1000.0} for key in (0.0, 4.0, "other")])


def run(database: Database[Document], command: Command) -> tuple[Document, list[str]]:
    """Whether a command succeeds, or its error, and what the output collection has then."""
    reply = database.command({"mapReduce": "c", "map": MAP, "reduce": REDUCE, **command}, check=False)
    shown: Document = {name: reply[name] for name in ("ok", "result", "code") if name in reply}
    return shown, sorted(map(str, database.o.find()))


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_as_of_a_mongod(router: Client, plain: Client, name: str) -> None:
    prepare(router[DB], sharded=True)
    prepare(plain[DB], sharded=False)
    command = OUTPUTS[name]
    on_router = run(router[DB], command)
    command = {**command, "out": {each: value for each, value in command["out"].items() if each != "sharded"}}
    assert on_router == run(plain[DB], command)
    assert on_router[0]["ok"] == 1


@pytest.mark.parametrize("out", ["o", {"replace": "o"}], ids=str)
def test_a_sharded_collection_is_not_replaced(router: Client, out: object) -> None:
    prepare(router[DB], sharded=True)
    reply, contents = run(router[DB], {"out": out})
    assert reply == {"ok": 0, "code": OUT_TO_SHARDED}
    assert len(contents) == 3


@pytest.mark.parametrize("out", ["o", {"merge": "o"}, {"reduce": "o", "sharded": True}], ids=str)
def test_a_collection_that_is_sharded_by_another_field(router: Client, out: object) -> None:
    prepare(router[DB], sharded=False)
    router[DB].o.drop()
    shard_by_range(router[DB], "o", key="other")
    reply, contents = run(router[DB], {"out": out})
    assert reply == {"ok": 0, "code": KEY_OTHER_THAN_ID}
    assert contents == []


def test_a_router_that_does_not_know_the_new_shard_key(router: Client, cluster: RunningCluster) -> None:
    prepare(router[DB], sharded=False)
    router[DB].o.drop()
    shard_by_range(router[DB], "o", key="other")
    reply, _ = run(router[DB], {"out": {"merge": "o"}})
    assert reply == {"ok": 0, "code": KEY_OTHER_THAN_ID}


def test_a_router_that_knows_only_the_former_shard_key(router: Client, cluster: RunningCluster) -> None:
    prepare(router[DB], sharded=True)
    assert run(router[DB], {"out": {"merge": "o"}})[0]["ok"] == 1
    with extra_router(cluster) as (address, _), client_of(address) as other:
        other[DB].o.drop()
        other.admin.command("shardCollection", f"{DB}.o", key={"_id": 1, "a": 1})
    reply, _ = run(router[DB], {"out": {"merge": "o"}})
    assert reply == {"ok": 0, "code": KEY_OTHER_THAN_ID}
    with cluster.direct("router.1") as another:
        another[DB].o.drop()
        shard_by_range(another[DB], "o", key="_id", split_at=2.5)
        reply, contents = run(router[DB], {"out": {"merge": "o"}})
    assert reply["ok"] == 1
    assert contents != []
