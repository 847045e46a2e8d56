"""Fail points: the modes of ``configureFailPoint``, failing and waiting."""

import pytest
import trio

from shardwright.daemon.fail_points import FailPoints
from shardwright.wire.errors import CommandError


def fires(points: FailPoints, times: int) -> list[bool]:
    return [points.should_fail("here") is not None for _ in range(times)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("off", [False, False, False]),
        ("alwaysOn", [True, True, True]),
        ({"times": 2}, [True, True, False]),
        ({"times": 0}, [True, False, False]),
        ({"skip": 2}, [False, False, True]),
        ({"activationProbability": 0.0}, [False, False, False]),
        ({"activationProbability": 1}, [True, True, True]),
    ],
)
def test_a_mode_determines_which_calls_are_affected(mode: object, expected: list[bool]) -> None:
    points = FailPoints(["here"])
    points.configure("here", mode)
    assert fires(points, 3) == expected
    assert points.configure("here", "off") == sum(expected)
    assert fires(points, 1) == [False]


@pytest.mark.parametrize("mode", ["sometimes", {"times": -1}, {"times": "2"}, {}, 1, {"activationProbability": 2}])
def test_an_unknown_mode_is_refused(mode: object) -> None:
    points = FailPoints(["here"])
    with pytest.raises(CommandError) as error:
        points.configure("here", mode)
    assert error.value.code_name in ("BadValue", "TypeMismatch")
    assert fires(points, 1) == [False]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(CommandError) as error:
        FailPoints(["here"]).configure("there", "alwaysOn")
    assert error.value.code_name == "FailPointSetFailed"


def test_the_data_determines_the_error_and_who_gets_it() -> None:
    points = FailPoints(["here"])
    points.configure("here", "alwaysOn", {"errorCode": 91, "namespace": "db.c"})
    assert points.should_fail("here", lambda data: data["namespace"] == "db.d") is None
    with pytest.raises(CommandError) as error:
        points.fail_if_on("here")
    assert error.value.code == 91
    assert points.configure("here", "off") == 1


async def test_waiting_ends_when_the_fail_point_is_turned_off() -> None:
    points = FailPoints(["here"])
    await points.hang_while("here")
    points.configure("here", "alwaysOn")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(points.hang_while, "here")
        with trio.fail_after(5):
            await points.wait_entered("here", 1)
        assert len(nursery.child_tasks) == 1
        points.configure("here", "off")
    assert points.configure("here", "off") == 1
