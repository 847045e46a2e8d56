"""What clients are told of the local mongod, and when they are told again."""

from collections.abc import Mapping
from typing import Any

import trio
from bson import ObjectId
from trio.testing import MockClock

from shardwright.daemon.sidecar.hello_mirror import HelloMirror

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


def test_knows_its_own_address_from_the_beginning() -> None:
    reply = mirror_of(hello(1)).current_reply(connection_id=9)
    assert reply is not None
    assert (reply["me"], reply["hosts"], reply["connectionId"]) == ("d0:1", ["d0:1"], 9)


def test_a_reply_that_says_the_same_is_no_new_version() -> None:
    mirror = mirror_of(hello(1))
    before = mirror.version
    mirror.observe(hello(1, localTime=5))
    assert mirror.version == before


def test_a_change_of_mongod_or_of_an_address_is_a_new_version() -> None:
    mirror = mirror_of(hello(1))
    before = mirror.version
    mirror.observe(hello(2, secondary=True))
    assert mirror.version == before.bumped()
    mirror.learn_sidecars({"m1:1": "d1:1"})
    assert mirror.version == before.bumped().bumped()
    assert not mirror.unmapped_members


def test_an_older_reply_that_comes_late_is_passed_over() -> None:
    mirror = mirror_of(hello(3, secondary=True))
    mirror.observe(hello(2, secondary=False))
    assert mirror.hello is not None
    assert mirror.hello["secondary"] is True


def test_another_run_of_mongod_begins_counting_again() -> None:
    mirror = mirror_of(hello(9))
    mirror.meet(hello(0, process=ObjectId(), secondary=True))
    assert mirror.hello is not None
    assert mirror.hello["secondary"] is True


def test_a_reply_of_a_run_that_has_ended_is_passed_over() -> None:
    mirror = mirror_of(hello(9, process=ObjectId(), secondary=False), hello(0, secondary=True))
    mirror.observe(hello(10, process=ObjectId(), secondary=False))
    assert mirror.hello is not None
    assert mirror.hello["secondary"] is True


def test_says_nothing_while_mongod_is_gone() -> None:
    mirror = mirror_of(hello(1))
    mirror.lose()
    assert mirror.current_reply(connection_id=1) is None


def test_whoever_waits_is_woken_by_a_change_at_once() -> None:
    mirror = mirror_of(hello(1))

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror.wait_for_change)
            await trio.testing.wait_all_tasks_blocked()
            mirror.observe(hello(2, secondary=True))
        return trio.current_time()

    clock = MockClock(autojump_threshold=0)
    assert trio.run(main, clock=clock) == clock.current_time()


def test_clients_learn_which_extensions_the_daemon_understands() -> None:
    mirror = HelloMirror("m0:1", "d0:1", ("newField",))
    mirror.meet(hello(1))
    reply = mirror.current_reply(connection_id=9)
    assert reply is not None
    assert reply["extensions"] == ["newField"]
    assert "extensions" not in mirror_of(hello(1)).present(hello(1))
