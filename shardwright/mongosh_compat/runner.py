"""Runner of a JavaScript file in the real mongosh."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import bson.json_util

ENVIRONMENT_VARIABLE = "SHARDWRIGHT_MONGOSH"
SCRIPTS = Path(__file__).parent / "scripts"

# Loaded before every script; defines `assert`.
PRELUDE = SCRIPTS / "assert.js"

DEFAULT_TIMEOUT = 120.0


class MongoshNotFoundError(Exception):
    """Absence of mongosh on this machine."""


class MongoshTimeoutError(Exception):
    """Timeout of a script; the message contains its output so far."""


@dataclass(frozen=True)
class MongoshResult:
    """The result of a script; the exit code is 1 after an uncaught exception."""

    exit_code: int
    output: str

    def check(self) -> str:
        """Return the script's output; raises an AssertionError with it if the script did not run to its end."""
        if self.exit_code != 0:
            raise AssertionError(f"mongosh ended with exit status {self.exit_code}:\n{self.output}")
        return self.output


def find_mongosh() -> str:
    """Find mongosh in the environment variable, the project's ``node_modules``, or ``PATH``."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    local = Path(__file__).parent.parent.parent / "node_modules" / ".bin" / "mongosh"
    for candidate in [named] if named else [str(local), "mongosh"]:
        path = shutil.which(candidate)
        if path is not None:
            return path
    raise MongoshNotFoundError(
        f"no mongosh found: run `make setup`, put it on PATH, or name it in {ENVIRONMENT_VARIABLE}"
    )


def run_script(
    uri: str, script: Path, *, variables: Mapping[str, object] | None = None, timeout: float = DEFAULT_TIMEOUT
) -> MongoshResult:
    """Run ``script`` against the deployment at ``uri``, without the user's own mongosh configuration.

    Args:
        variables: global variables for the script, by name; any BSON values.
        timeout: seconds.

    Raises:
        MongoshNotFoundError: there is no mongosh.
        MongoshTimeoutError: the script did not end in time, and was killed.
    """
    return _run(uri, ["--file", str(PRELUDE), "--file", str(script)], variables or {}, timeout)


def run_code(uri: str, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> MongoshResult:
    """Run a line of JavaScript like `run_script`; the value of the last expression is printed."""
    return _run(uri, ["--eval", code], {}, timeout)


def _run(uri: str, arguments: list[str], variables: Mapping[str, object], timeout: float) -> MongoshResult:
    definitions = [
        f"globalThis[{bson.json_util.dumps(name)}] = EJSON.parse({bson.json_util.dumps(bson.json_util.dumps(value))});"
        for name, value in variables.items()
    ]
    # An expression that is undefined prints nothing.
    setup = ["--eval", "".join(definitions) + "undefined"] if definitions else []
    command = [find_mongosh(), uri, "--quiet", "--norc", *setup, *arguments]
    with tempfile.TemporaryDirectory(prefix="mongosh-") as home:
        make_home(Path(home))
        return _run_in(home, command, timeout)


def make_home(home: Path) -> None:
    """Prepare ``home`` for a user who has declined mongosh's telemetry; mongosh writes its logs there too."""
    directory = home / ".mongodb" / "mongosh"
    directory.mkdir(parents=True)
    (directory / "config").write_text('{"enableTelemetry": false}')


def _run_in(home: str, command: list[str], timeout: float) -> MongoshResult:
    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env={**os.environ, "HOME": home, "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout
        raise MongoshTimeoutError(f"{command[-1]} did not end within {timeout:.0f} s; it printed:\n{printed}") from None
    return MongoshResult(completed.returncode, completed.stdout)
