"""Key files that mongod accepts or refuses, and the delays of guesses of one password from one address."""

from pathlib import Path

import pytest

from shardwright.daemon.authentication import FailedLogIns, read_key_file
from shardwright.daemon.users import UserName

ANN, BEN = UserName("ann", "admin"), UserName("ben", "admin")
HERE, THERE = "127.0.0.1", "192.0.2.1"


def written(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("abcdef", ("abcdef",)),
        ("abc def\n+/=\n", ("abcdef+/=",)),
        ("a" * 1024, ("a" * 1024,)),
        ("- abcdef\n- ghijkl\n", ("abcdef", "ghijkl")),
        ("# rotated\n- 'abcdef'\n- \"ghijkl\"\n", ("abcdef", "ghijkl")),
        ("- abc\n  def\n", ("abcdef",)),
    ],
)
def test_keys_are_read(tmp_path: Path, text: str, keys: tuple[str, ...]) -> None:
    assert read_key_file(written(tmp_path, text)) == keys


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("abcde", "has length 5, must be between 6 and 1024 chars"),
        ("", "has length 0"),
        ("a" * 1025, "has length 1025"),
        ("abc!defgh", "invalid char in key file"),
        ("abcdéf", "invalid char in key file"),
        ("- abcdef\n- ghijkl\n- mnopqr\n", "Only two keys are supported in the security key file"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=complaint) as refusal:
        read_key_file(path)
    assert not text or text not in str(refusal.value), "the key itself is in the message"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o777])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, "abcdef", mode)
    with pytest.raises(ValueError, match=f"permissions on {path} are too open"):
        read_key_file(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_its_owner_may_have_any_rights(tmp_path: Path, mode: int) -> None:
    assert read_key_file(written(tmp_path, "abcdef", mode)) == ("abcdef",)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_key_file(tmp_path / "none")


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
