"""The runner of mongosh scripts, without a server."""

from pathlib import Path

import pytest

from shardwright.mongosh_compat.runner import MongoshNotFoundError, MongoshTimeoutError, find_mongosh, run_script

NO_SERVER = "--nodb"


def test_output_and_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text("assert.eq(1 + 1, 2); print('sum', given.n + 1);")
    result = run_script(NO_SERVER, script, variables={"given": {"n": 41, "quotes": "'\"`"}})
    assert (result.exit_code, result.output) == (0, "sum 42\n")


def test_failed_assertion_fails_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text("assert.eq([1, 2], [1, 3], 'pairs'); print('not reached');")
    result = run_script(NO_SERVER, script)
    assert result.exit_code != 0
    assert "pairs: found [1,2], expected [1,3]" in result.output
    assert "not reached" not in result.output
    with pytest.raises(AssertionError, match="pairs"):
        result.check()


def test_expected_error_that_does_not_come_fails_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text("assert.failsWith(() => 1, 59);")
    assert "expected error code 59" in run_script(NO_SERVER, script).output


def test_script_that_does_not_end_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text("print('begun'); while (true) sleep(1000);")
    with pytest.raises(MongoshTimeoutError):
        run_script(NO_SERVER, script, timeout=3)


def test_missing_mongosh_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_MONGOSH", "/nowhere/mongosh")
    with pytest.raises(MongoshNotFoundError):
        find_mongosh()
