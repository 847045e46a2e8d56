"""Key files that mongod accepts, and key files that it refuses."""

from pathlib import Path

import pytest

from shardwright.daemon.key_file import read_key_file


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
