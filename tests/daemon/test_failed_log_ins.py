"""Guesses of one password from one address are delayed more and more, and nothing else is."""

from shardwright.daemon.failed_log_ins import FailedLogIns
from shardwright.daemon.user_names import UserName

ANN, BEN = UserName("ann", "admin"), UserName("ben", "admin")
HERE, THERE = "127.0.0.1", "192.0.2.1"


class Clock:
    """The time, which passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_delays_grow_up_to_a_bound_and_end() -> None:
    clock = Clock()
    failed = FailedLogIns(clock)
    delays = []
    for _ in range(40):
        delays.append(failed.delay_seconds(ANN, HERE))
        failed.note(ANN, HERE)
    assert delays[:8] == [0, 0, 0, 0, 0, 0.1, 0.2, 0.4]
    assert delays[-1] == 2.0
    assert failed.delay_seconds(ANN, THERE) == failed.delay_seconds(BEN, HERE) == 0
    clock.now += 61
    assert failed.delay_seconds(ANN, HERE) == 0
    failed.note(ANN, HERE)
    assert failed.delay_seconds(ANN, HERE) == 0


def test_a_success_ends_the_delay() -> None:
    failed = FailedLogIns()
    for _ in range(10):
        failed.note(ANN, HERE)
    assert failed.delay_seconds(ANN, HERE) == 2.0
    failed.forget(ANN, HERE)
    assert failed.delay_seconds(ANN, HERE) == 0


def test_memory_is_bounded() -> None:
    failed = FailedLogIns()
    for _ in range(10):
        failed.note(ANN, HERE)
    for number in range(10_000):
        failed.note(UserName(str(number), "admin"), HERE)
    assert failed.delay_seconds(ANN, HERE) == 0
