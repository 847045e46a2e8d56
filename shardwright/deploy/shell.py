"""Programs that replace the launcher process: mongosh for a cluster, and tail for a log."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from shardwright.deploy.errors import DeployError
from shardwright.mongosh_compat.runner import MongoshNotFoundError, find_mongosh

URI_VARIABLE: Final = "SHARDWRIGHT_URI"
"""The environment variable for the connection string, because every user of the machine can read command lines."""

_CONNECT: Final = f"db = connect(process.env.{URI_VARIABLE}); delete process.env.{URI_VARIABLE}; void 0"


@dataclass(frozen=True)
class Program:
    """A program to run."""

    words: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def replace_this_process(self) -> None:
        """Run the program in place of this process."""
        try:
            os.execvpe(self.words[0], list(self.words), {**os.environ, **self.environment})
        except OSError as error:
            raise DeployError(f"cannot run {shlex.join(self.words[:1])}: {error.strerror}") from error


def mongosh(document: dict[str, Any], words: Sequence[str]) -> Program:
    """Return the mongosh that connects to a cluster and logs in as its first user.

    Args:
        words: further words of its command line; with a script, mongosh exits after it.
    """
    try:
        program = find_mongosh()
    except MongoshNotFoundError as error:
        raise DeployError(str(error)) from error
    stay = () if any(word in ("--eval", "--file", "-f") or word.endswith(".js") for word in words) else ("--shell",)
    uri = connection_string(document)
    return Program([program, "--nodb", *stay, "--eval", _CONNECT, *words], {URI_VARIABLE: uri})


def connection_string(document: dict[str, Any]) -> str:
    """Return the connection string of a cluster with all client options, possibly including a password."""
    uri, access, tls = str(document["uri"]), document.get("auth"), document.get("tls")
    parameters: dict[str, str] = {}
    if access is not None:
        try:
            password = Path(access["passwordFile"]).read_text(encoding="ascii")
        except OSError as error:
            raise DeployError(f"cannot read the password in {access['passwordFile']}: {error.strerror}") from error
        user = f"{quote_plus(access['user'])}:{quote_plus(password)}"
        uri = uri.replace("mongodb://", f"mongodb://{user}@", 1)
        parameters["authSource"] = access["database"]
    if tls is not None:
        parameters["tls"] = "true"
        parameters["tlsCAFile"] = tls["caFile"]
        parameters["tlsCertificateKeyFile"] = tls["clientCertificateFile"]
    return f"{uri}?{urlencode(parameters)}" if parameters else uri


def tail(log: Path, lines: int, *, follows: bool) -> Program:
    """Return the program that prints the end of a log.

    Args:
        follows: whether to continue with new lines, also after a rotation.
    """
    if not log.exists():
        raise DeployError(f"there is no log {log}: the process was never started")
    return Program(["tail", "-n", str(lines), *(("-F",) if follows else ()), str(log)])
