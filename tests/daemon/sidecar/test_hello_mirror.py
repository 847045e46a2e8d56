"""The hello that clients see of the local mongod, and notifications of changes."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from bson import ObjectId, Timestamp
from trio.testing import MockClock

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

PROCESS = ObjectId()


def hello(counter: int, *, process: ObjectId = PROCESS, **fields: Any) -> Mapping[str, Any]:  # noqa: ANN401 - of a reply
    return {
        "topologyVersion": {"processId": process, "counter": counter},
        "hosts": ["m0:1", "m1:1"],
        "me": "m0:1",
        **fields,
    }


def mirror_of(*replies: Mapping[str, Any]) -> HelloMirror:
    mirror = HelloMirror("m0:1", "d0:1")
    for reply in replies:
        mirror.meet(reply)
    return mirror


def test_own_address_is_known_from_the_start() -> None:
    reply = mirror_of(hello(1)).current_reply(connection_id=9)
    assert reply is not None
    assert (reply["me"], reply["hosts"], reply["connectionId"]) == ("d0:1", ["d0:1"], 9)


def test_the_role_is_shown_in_the_place_where_mongodb_shows_it() -> None:
    set_of_three = hello(1, setName="s", lastWrite={}, maxBsonObjectSize=5)
    for role, field in (("configsvr", ("configsvr", 2)), ("shardsvr", ("isImplicitDefaultMajorityWC", True))):
        shown = list(HelloMirror("m0:1", "d0:1", cluster_role=role).present(set_of_three).items())
        at = shown.index(field)
        assert [name for name, _ in shown[at - 1 : at + 2]] == ["lastWrite", field[0], "maxBsonObjectSize"]
        assert shown[0][0] == "topologyVersion"


@pytest.mark.parametrize(
    ("members", "arbiters", "is_majority"), [(1, 0, True), (2, 1, False), (3, 1, False), (3, 2, False), (4, 1, True)]
)
def test_the_implicit_write_concern_of_a_shard(members: int, arbiters: int, *, is_majority: bool) -> None:
    addresses = [f"m{number}:1" for number in range(members + arbiters)]
    found = hello(1, setName="s", hosts=addresses[:members], arbiters=addresses[members:])
    shown = HelloMirror("m0:1", "d0:1", cluster_role="shardsvr").present(found)
    assert shown["isImplicitDefaultMajorityWC"] is is_majority


def test_a_set_that_is_not_initiated_has_no_write_concern() -> None:
    shown = HelloMirror("m0:1", "d0:1", cluster_role="shardsvr").present(hello(1))
    assert "isImplicitDefaultMajorityWC" not in shown


def test_the_time_for_one_client_is_not_shown_to_another() -> None:
    time = Timestamp(1, 1)
    told = {**hello(1), "$clusterTime": {"clusterTime": time}, "operationTime": time}
    reply = mirror_of(told).current_reply(9)
    assert reply is not None
    assert not reply.keys() & {"$clusterTime", "operationTime"}


def test_an_identical_reply_does_not_change_the_version() -> None:
    mirror = mirror_of(hello(1))
    before = mirror.version
    mirror.observe(hello(1, localTime=5))
    assert mirror.version == before


def test_a_change_of_mongod_or_of_an_address_changes_the_version() -> None:
    mirror = mirror_of(hello(1))
    before = mirror.version
    mirror.observe(hello(2, secondary=True))
    assert mirror.version == before.bumped()
    mirror.learn_sidecars({"m1:1": "d1:1"})
    assert mirror.version == before.bumped().bumped()
    assert not mirror.unmapped_members


def test_an_older_reply_is_ignored() -> None:
    mirror = mirror_of(hello(3, secondary=True))
    mirror.observe(hello(2, secondary=False))
    assert mirror.hello is not None
    assert mirror.hello["secondary"] is True


def test_a_new_mongod_process_restarts_the_counter() -> None:
    mirror = mirror_of(hello(9))
    mirror.meet(hello(0, process=ObjectId(), secondary=True))
    assert mirror.hello is not None
    assert mirror.hello["secondary"] is True


def test_a_reply_of_an_ended_process_is_ignored() -> None:
    mirror = mirror_of(hello(9, process=ObjectId(), secondary=False), hello(0, secondary=True))
    mirror.observe(hello(10, process=ObjectId(), secondary=False))
    assert mirror.hello is not None
    assert mirror.hello["secondary"] is True


def test_there_is_no_reply_while_mongod_is_gone() -> None:
    mirror = mirror_of(hello(1))
    mirror.lose()
    assert mirror.current_reply(connection_id=1) is None


def test_a_change_wakes_waiters_at_once() -> None:
    mirror = mirror_of(hello(1))

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror.wait_for_change)
            await trio.testing.wait_all_tasks_blocked()
            mirror.observe(hello(2, secondary=True))
        return trio.current_time()

    clock = MockClock(autojump_threshold=0)
    assert trio.run(main, clock=clock) == clock.current_time()


def test_hello_lists_the_daemons_extensions() -> None:
    mirror = HelloMirror("m0:1", "d0:1", ("newField",))
    mirror.meet(hello(1))
    reply = mirror.current_reply(connection_id=9)
    assert reply is not None
    assert reply["extensions"] == ["newField"]
    assert "extensions" not in mirror_of(hello(1)).present(hello(1))


async def test_quiesce_mode_is_news_and_refuses_every_hello(autojump_clock: MockClock) -> None:
    mirror = mirror_of(hello(1))
    before = mirror.version
    mirror.check_not_quiescing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mirror.wait_for_change)
        await trio.testing.wait_all_tasks_blocked()
        mirror.begin_quiesce(5)
    await trio.sleep(2)
    with pytest.raises(CommandError) as refused:
        mirror.check_not_quiescing()
    assert (refused.value.code, refused.value.message) == (
        ErrorCode.ShutdownInProgress,
        "The server is in quiesce mode and will shut down",
    )
    assert refused.value.extra == {
        "topologyVersion": before.bumped().document(),
        "remainingQuiesceTimeMillis": 3000,
    }
