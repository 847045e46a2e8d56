"""Users see and end their own operations without a privilege, and never other users' operations, as on a mongod.

On mongos this holds for the router's own operations; operations on shards need the privileges `inprog` and `killop`.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from bson import Binary, Int64

from tests.access_control.conftest import PlainMongod
from tests.access_control.test_sideways import key_of, sideways  # noqa: F401 - a fixture
from tests.access_control.users import identified
from tests.integration.raw_client import RawClient
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster

Command = dict[str, Any]

ENDLESS: Final = {"$where": "sleep(600000)"}
SESSION: Final = {"id": Binary(bytes(range(16)), 4)}
LOCAL: Final = {"localOps": True, "idleConnections": True, "idleCursors": True}
SHARD: Final = "shard0.0.shardd"


@contextmanager
def logged_in(cluster: RunningCluster, user: str, process: str = "router.0") -> Iterator[RawClient]:
    """A connection in the name of a user."""
    with identified(cluster.address(process), user, key_of(cluster)) as raw:
        yield raw


@contextmanager
def running(raw: RawClient, command: Command) -> Iterator["Future[Command]"]:
    """Run a command in the background; its reply is in the future."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(raw.command, command, db="shop")


def shown(raw: RawClient, stage: Command, comment: str | None = None) -> list[Command]:
    """Return the user's view of ``$currentOp``, all of it or the operations with a comment."""
    reply = raw.command({"aggregate": 1, "pipeline": [{"$currentOp": stage}], "cursor": {"batchSize": 1000}})
    assert reply["ok"], reply
    found: list[Command] = reply["cursor"]["firstBatch"]
    return [each for each in found if comment is None or each.get("command", {}).get("comment") == comment]


def current_op(raw: RawClient, comment: str, **arguments: object) -> list[Command]:
    """Return the user's view of ``currentOp``, restricted to operations with a comment."""
    reply = raw.command({"currentOp": 1, "command.comment": comment, **arguments})
    assert reply["ok"], reply
    found: list[Command] = reply["inprog"]
    return found


def refusal(opid: int) -> tuple[int, str]:
    """Code and text of the error for those who must not end an operation."""
    return 13, f'not authorized on admin to execute command {{ killOp: 1, op: {opid}, $db: "admin" }}'


def test_as_on_a_mongod(closed: RunningCluster, plain: PlainMongod) -> None:
    """The shown fields of users, and who may end it."""
    seen = []
    for address, key in ((closed.address("router.0"), key_of(closed)), (plain.address, plain.key)):
        with (
            identified(address, "reader", key) as working,
            identified(address, "reader", key) as own,
            identified(address, "writer", key) as other,
            running(working, {"find": "plain", "filter": ENDLESS, "comment": "own"}) as reply,
        ):
            [mine] = eventually(lambda own=own: shown(own, LOCAL, "own"), what="it is shown")  # type: ignore[misc]
            connections = [each for each in shown(other, LOCAL) if each["type"] == "op"]
            others = {user["user"] for each in connections for user in each["effectiveUsers"]}
            refused = other.command({"killOp": 1, "op": mine["opid"]})
            assert (refused["code"], refused["errmsg"]) == refusal(mine["opid"])
            assert shown(own, LOCAL, "own")
            killed = own.command({"killOp": 1, "op": mine["opid"]})
            interrupted = reply.result()
            again = own.command({"killOp": 1, "op": mine["opid"]})
            assert (again["code"], again["errmsg"]) == refusal(mine["opid"])
            # Where exactly the operation was, when it was interrupted, may differ.
            error = interrupted["code"], interrupted["errmsg"].rpartition(" :: caused by :: ")[2]
            seen.append((mine["effectiveUsers"], others, killed["info"], error))
    assert seen[0] == seen[1]
    assert seen[0][:2] == ([{"user": "reader", "db": "admin"}], {"writer"})


def test_cursors_and_transactions_of_others_are_not_shown(closed: RunningCluster) -> None:
    with logged_in(closed, "reader") as reader, logged_in(closed, "writer") as writer:
        cursor_id = reader.command({"find": "goods", "batchSize": 1}, db="shop")["cursor"]["id"]
        statement = {"find": "goods", "limit": 1, "lsid": SESSION, "txnNumber": Int64(1), "autocommit": False}
        assert reader.command({**statement, "startTransaction": True}, db="shop")["ok"] == 1.0
        for raw, is_own in ((reader, True), (writer, False)):
            entries = shown(raw, LOCAL)
            assert (cursor_id in [each["cursor"]["cursorId"] for each in entries if "cursor" in each]) == is_own
            assert (
                SESSION["id"] in [each["lsid"]["id"] for each in entries if each["type"] == "idleSession"]
            ) == is_own
        for raw in (reader, writer):
            refused = raw.command(
                {"aggregate": 1, "pipeline": [{"$currentOp": {**LOCAL, "allUsers": True}}], "cursor": {}}
            )
            assert refused["code"] == 13
        reader.command({"killCursors": "goods", "cursors": [Int64(cursor_id)]}, db="shop")
        reader.command({"abortTransaction": 1, "lsid": SESSION, "txnNumber": Int64(1), "autocommit": False})


def test_an_operation_in_a_session_of_the_same_name_goes_on(closed: RunningCluster) -> None:
    """Session ids belong to their users: ending an operation ends no other user's operation on the shards."""
    with (
        logged_in(closed, "reader") as victim,
        logged_in(closed, "writer") as attacker,
        logged_in(closed, "writer") as killer,
        logged_in(closed, "chief") as chief,
        running(victim, {"find": "plain", "filter": ENDLESS, "comment": "victim", "lsid": SESSION}) as reply,
    ):
        eventually(lambda: current_op(chief, "victim"), what="it runs on the shard")
        with running(attacker, {"find": "plain", "filter": ENDLESS, "comment": "bait", "lsid": SESSION}) as bait:
            eventually(lambda: current_op(chief, "bait"), what="it runs on the shard too")
            [mine] = shown(killer, LOCAL, "bait")
            assert shown(killer, LOCAL, "victim") == []
            assert killer.command({"killOp": 1, "op": mine["opid"]})["ok"] == 1.0
            assert bait.result()["code"] == 11601
        eventually(lambda: not current_op(chief, "bait"), what="it has ended on the shard")
        [running_on] = current_op(chief, "victim")
        forged = {**SESSION, "uid": running_on["lsid"]["uid"]}
        assert killer.command({"currentOp": 1, "$ownOps": True, "lsid": forged})["code"] == 13
        assert not reply.done()
        assert chief.command({"killOp": 1, "op": running_on["opid"]})["ok"] == 1.0
        assert reply.result()["code"] == 11601


def test_operations_on_shards_take_a_privilege(closed: RunningCluster) -> None:
    """With it, those are one's own that run in one's own sessions."""
    with (
        logged_in(closed, "reader") as reader,
        logged_in(closed, "reader") as same,
        logged_in(closed, "chief") as worker,
        logged_in(closed, "chief") as chief,
        running(reader, {"find": "plain", "filter": ENDLESS, "comment": "theirs", "lsid": SESSION}) as theirs,
        running(worker, {"find": "plain", "filter": ENDLESS, "comment": "mine", "lsid": SESSION}) as mine,
    ):
        for comment in ("theirs", "mine"):
            eventually(lambda comment=comment: current_op(chief, comment), what="it runs")  # type: ignore[misc]
        assert current_op(chief, "theirs", **{"$ownOps": True}) == []
        assert shown(chief, {}, "theirs") == []
        [own] = current_op(chief, "mine", **{"$ownOps": True})
        assert [each["opid"] for each in shown(chief, {}, "mine")] == [own["opid"]]
        [others] = shown(chief, {"allUsers": True}, "theirs")
        assert shown(chief, {"allUsers": True}, "mine")
        assert same.command({"killOp": 1, "op": others["opid"]})["code"] == 13
        for each in (own, others):
            assert chief.command({"killOp": 1, "op": each["opid"]})["ok"] == 1.0
        assert (theirs.result()["code"], mine.result()["code"]) == (11601, 11601)


def test_at_a_shard_daemon_too(sideways: RunningCluster) -> None:  # noqa: F811 - a fixture
    """The mongod decides there. A user of the cluster is never the same as a mongod's user, even with the same name."""
    with (
        logged_in(sideways, "reader") as through_router,
        logged_in(sideways, "chief") as chief,
        running(through_router, {"find": "plain", "filter": ENDLESS, "comment": "routed", "lsid": SESSION}) as routed,
        logged_in(sideways, "reader", SHARD) as working,
        logged_in(sideways, "reader", SHARD) as own,
        logged_in(sideways, "writer", SHARD) as other,
        logged_in(sideways, "chief", SHARD) as local_chief,
        running(working, {"find": "plain", "filter": ENDLESS, "comment": "direct", "lsid": SESSION}) as direct,
    ):
        [mine] = eventually(lambda: current_op(own, "direct", **{"$ownOps": True}), what="it is shown")
        eventually(lambda: current_op(chief, "routed"), what="it runs")
        assert [each["opid"] for each in shown(own, {}, "direct")] == [mine["opid"]]
        [others] = current_op(local_chief, "routed")
        assert current_op(own, "routed", **{"$ownOps": True}) == shown(own, {}, "routed") == []
        for raw, opid in ((own, others["opid"]), (other, mine["opid"]), (other, others["opid"])):
            refused = raw.command({"killOp": 1, "op": opid})
            assert (refused["code"], refused["errmsg"]) == refusal(opid)
        assert current_op(other, "direct", **{"$ownOps": True}) == shown(other, {}, "direct") == []
        assert (routed.done(), direct.done()) == (False, False)
        assert own.command({"killOp": 1, "op": mine["opid"]})["ok"] == 1.0
        assert direct.result()["code"] == 11601
        assert local_chief.command({"killOp": 1, "op": others["opid"]})["ok"] == 1.0
        assert routed.result()["code"] == 11601
