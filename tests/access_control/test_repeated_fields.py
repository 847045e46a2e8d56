"""Documents with two fields of a name: access control must judge the field that is executed."""

from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Int64, Timestamp
from bson.binary import Binary

from shardwright.wire.error_codes import ErrorCode
from tests.access_control.conftest import PlainMongod
from tests.access_control.documents import with_fields
from tests.access_control.test_matrix import aggregate
from tests.access_control.users import LogIn, create_users, raw_user
from tests.integration.raw_client import raw_client
from tests.local_cluster import RunningCluster

FORBIDDEN: Final[list[Any]] = [{"$unionWith": {"coll": "system.profile", "pipeline": []}}]
INTERNAL: Final[list[Any]] = [{"$group": {"_id": 1, "$doingMerge": True}}]


def facet(*pipelines: list[Any]) -> dict[str, Any]:
    return {"$facet": with_fields(*(("x", pipeline) for pipeline in pipelines))}


AS_ON_MONGOD: Final[list[dict[str, Any]]] = [
    aggregate(facet(FORBIDDEN, [])),
    aggregate(facet([], FORBIDDEN)),
    aggregate({"$unionWith": {"coll": "plain", "pipeline": [facet(FORBIDDEN, [])]}}),
    aggregate({"$lookup": {"from": "plain", "pipeline": [facet(FORBIDDEN, [])], "as": "x"}}),
    aggregate({"$unionWith": with_fields(("coll", "system.profile"), ("coll", "plain"))}),
    aggregate({"$out": with_fields(("db", "shop"), ("db", "other"), ("coll", "x"))}),
    aggregate({"$merge": {"into": with_fields(("db", "shop"), ("db", "other"), ("coll", "x"))}}),
    {"explain": aggregate(facet(FORBIDDEN, []))},
]


_NO_NAMES: Final[tuple[Any, ...]] = (3, None, [])
NOT_NAMED: Final[list[dict[str, Any]]] = [
    *({"$out": {"db": db, "coll": "x"}} for db in _NO_NAMES),
    *({"$out": {"db": db, "coll": 3}} for db in ("shop", 3)),
    *({"$out": out} for out in ({"coll": "x"}, {"db": "shop", "coll": "x", "other": 1}, {})),
    *({"$merge": {"into": {"db": db, "coll": "x"}}} for db in _NO_NAMES if db is not None),
]
"""Collections to write to whose database, or whose name, is none."""


def test_repeated_fields_are_judged_as_by_mongod(closed: RunningCluster, plain: PlainMongod) -> None:
    with raw_user(closed, "writer") as ours, raw_client(plain.address) as theirs:
        LogIn(theirs, "writer").complete()
        for command in AS_ON_MONGOD:
            expected = theirs.command(command, db="shop")
            seen = ours.command(command, db="shop")
            assert expected["ok"] == 0
            assert (seen.get("code"), seen.get("errmsg")) == (expected["code"], expected["errmsg"])


def test_a_target_without_a_name_is_refused_as_by_mongod(closed: RunningCluster, plain: PlainMongod) -> None:
    with raw_user(closed, "writer") as ours, raw_client(plain.address) as theirs:
        LogIn(theirs, "writer").complete()
        for stage in NOT_NAMED:
            for command in (aggregate(stage), {"explain": aggregate({"$limit": 1}, stage)}):
                expected = theirs.command(command, db="shop")
                seen = ours.command(command, db="shop")
                assert expected["ok"] == 0
                assert (seen.get("code"), seen.get("errmsg")) == (expected["code"], expected["errmsg"]), command


# A mongod that gets these from a user who may read "plain" ends with a failed invariant.
@pytest.mark.parametrize(
    ("stage", "field"),
    [
        ({"$lookup": with_fields(("from", "plain"), ("from", "goods"), ("pipeline", []), ("as", "x"))}, "from"),
        (
            {"$lookup": with_fields(("from", "plain"), ("pipeline", FORBIDDEN), ("pipeline", []), ("as", "x"))},
            "pipeline",
        ),
        (
            {
                "$graphLookup": with_fields(
                    *(("from", "plain"), ("from", "goods"), ("startWith", 1), ("connectFromField", "a")),
                    *(("connectToField", "a"), ("as", "x")),
                )
            },
            "from",
        ),
    ],
    ids=["collections", "pipelines", "collections of a graph"],
)
def test_joins_that_would_end_a_shard_are_refused(closed: RunningCluster, stage: dict[str, Any], field: str) -> None:
    (name,) = stage
    with raw_user(closed, "writer") as client:
        for command in (
            aggregate(stage),
            aggregate(facet([stage], [])),
            {"explain": aggregate(stage)},
            {"create": "v", "viewOn": "plain", "pipeline": [stage]},
        ):
            refused = client.command(command, db="shop")
            assert (refused["code"], refused["errmsg"]) == (40413, f"BSON field '{name}.{field}' is a duplicate field")
        assert client.command({"count": "goods"}, db="shop")["n"] > 0


def test_stages_of_servers_are_found_among_repeated_fields(closed: RunningCluster) -> None:
    with raw_user(closed, "chief") as client:
        refused = client.command(aggregate(facet(INTERNAL, [])), db="shop")
        assert refused["errmsg"].startswith("not authorized on shop")


def digest(user: str) -> Binary:
    """The ``uid`` of the sessions of a user."""
    return Binary(sha256(f"{user}@admin".encode()).digest())


@pytest.mark.parametrize("process", ["router.0", "router.1"])
def test_nobody_takes_part_in_the_transaction_of_another_user(closed: RunningCluster, process: str) -> None:
    identifier = Binary.from_uuid(uuid4())
    transaction = {"txnNumber": Int64(1), "autocommit": False}
    stolen = with_fields(("id", identifier), ("uid", digest("reader")), ("uid", digest("writer")))
    with raw_user(closed, "writer") as victim, raw_user(closed, "reader", process) as attacker:
        begin = {"insert": "plain", "documents": [{"_id": "stolen"}], "startTransaction": True}
        assert victim.command({**begin, **transaction, "lsid": {"id": identifier}}, db="shop")["ok"] == 1
        for db, command in (("shop", {"find": "plain"}), ("admin", {"commitTransaction": 1})):
            refused = attacker.command({**command, **transaction, "lsid": stolen}, db=db)
            expected = (40413, "BSON field 'OperationSessionInfo.lsid.uid' is a duplicate field")
            assert (refused["code"], refused["errmsg"]) == expected
        abort = {"abortTransaction": 1, **transaction, "lsid": {"id": identifier}}
        assert victim.command(abort, db="admin")["ok"] == 1


@pytest.mark.parametrize("process", ["router.0", "shard0.0.shardd"])
def test_nobody_advances_the_clock_by_a_second_time(closed: RunningCluster, process: str) -> None:
    with closed.direct(process) as system, raw_client(closed.address(process)) as client:
        if process.startswith("router"):
            LogIn(client, "reader").complete()
        now: Timestamp = system.admin.command("ping")["$clusterTime"]["clusterTime"]
        signature = {"hash": Binary(bytes(20)), "keyId": Int64(0)}
        late, early = Timestamp(now.time + 1_000_000, 1), Timestamp(now.time - 1, 1)
        forged = with_fields(("signature", signature), ("clusterTime", late), ("clusterTime", early))
        assert client.command({"find": "plain", "$clusterTime": forged}, db="shop")["ok"] == 0
        later: Timestamp = system.admin.command("ping")["$clusterTime"]["clusterTime"]
        assert later.time < now.time + 1000


@pytest.mark.parametrize("time", [5, "now", {}], ids=str)
def test_what_is_no_time_is_refused_at_a_shard(closed: RunningCluster, time: object) -> None:
    with closed.direct("shard0.0.shardd") as system:
        create_users(system)
    with raw_user(closed, "chief", "shard0.0.shardd") as client:
        for command in ({"ping": 1}, {"getShardVersion": "shop.goods"}):
            assert client.command({**command, "$clusterTime": time})["code"] != ErrorCode.InternalError
        assert client.command({"ping": 1})["ok"] == 1
