"""Suggestions for misspelt words, and the help without any word."""

import pytest

from shardwright.deploy.cli import main


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["stauts"], "(did you mean status?)"),
        (["balancer", "strat"], "(did you mean start?)"),
        (["up", "--shrads", "2"], "(did you mean --shards?)"),
        (["up", "--memmbers=2"], "(did you mean --members?)"),
    ],
)
def test_the_nearest_word_is_suggested(words: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip("\n").endswith(suggestion.rstrip("\n"))


@pytest.mark.parametrize("words", [["xyzzy"], ["status", "--xyzzy"]])
def test_nothing_is_suggested_for_a_word_like_no_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert "xyzzy" in (error := capsys.readouterr().err)
    assert "did you mean" not in error


def test_no_word_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "Start a cluster, or restart the one in the directory." in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("shardwright ")
