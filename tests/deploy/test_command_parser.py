"""Suggestions for misspelt words, the help without any word, and completion scripts in the installed shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from shardwright.deploy.cli import main
from shardwright.deploy.command_line import argument_parser
from shardwright.deploy.command_parser import SHELLS, commands, completion_script

SECONDS_MAX = 60.0


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


def completed(directory: Path, *words: str) -> list[str]:
    """Return bash's completions after these words."""
    script = directory / "script"
    script.write_text(completion_script("bash", argument_parser()))
    quoted = " ".join(f"'{word}'" for word in words)
    code = (
        f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shardwright; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=SECONDS_MAX, check=True, cwd=directory
    )
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("shardwright", "rest"), ["restart"]),
        (("shardwright", "balancer", "st"), ["start", "status", "stop"]),
        (("shardwright", "up", "--cluster-auth-mode", "x"), ["x509"]),
        (("shardwright", "up", "--shar"), ["--shardd-option", "--shards"]),
        (("shardwright", "restart", "shard0.0."), ["shard0.0.mongod", "shard0.0.shardd"]),
        (("shardwright", "restart", "--dir", "other", "rou"), ["router.7"]),
        (("shardwright", "completion", ""), ["bash", "zsh", "fish", "-h", "--help"]),
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], expected: list[str]) -> None:
    for name in (".shardwright/pids/shard0.0.mongod", ".shardwright/pids/shard0.0.shardd", "other/pids/router.7"):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert sorted(completed(tmp_path, *words)) == sorted(expected)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, command in commands(argument_parser()).items():
        assert name in script
        for action in command._actions:
            for flag in action.option_strings if action.help != "==SUPPRESS==" else ():
                assert flag.lstrip("-") in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, timeout=SECONDS_MAX, check=True)
