"""Access control of a local cluster: its key file, its first user, and how the launcher itself logs in.

::

    DIR/auth/key         by which the processes recognise each other, and the launcher
    DIR/auth/password    of the first user

Both are for their owner alone. The launcher logs in with the key, so that a changed password does not lock it out.
"""

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.deploy.errors import DeployError, reason

FIRST_USER: Final = "root"
FIRST_USER_DATABASE: Final = "admin"

_KEY_BYTES: Final = 756
"""As MongoDB recommends: 1008 characters, with at most 1024 allowed."""
_PASSWORD_BYTES: Final = 24
_USER_EXISTS: Final = 51003


@dataclass(frozen=True)
class Access:
    """The files of a cluster with access control."""

    directory: Path

    @property
    def key_file(self) -> Path:
        """The file for ``--key-file``."""
        return self.directory / "key"

    @property
    def password_file(self) -> Path:
        """The file with the password of the first user."""
        return self.directory / "password"

    def create(self) -> None:
        """Make the files that do not exist yet.

        Raises:
            DeployError: they cannot be written.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            write_once(self.key_file, base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode())
            write_once(self.password_file, secrets.token_urlsafe(_PASSWORD_BYTES))
        except OSError as error:
            raise DeployError(f"cannot create the secrets in {self.directory}: {error.strerror}") from error

    def log_in(self) -> Mapping[str, Any]:
        """The options with which a client logs in as a part of the cluster.

        Raises:
            DeployError: the key file cannot be read.
        """
        try:
            key = self.key_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeployError(f"cannot read the key file {self.key_file}: {error}") from error
        return {"username": "__system", "password": key, "authSource": "local", "authMechanism": "SCRAM-SHA-256"}

    def create_first_user(self, client: MongoClient[dict[str, Any]]) -> None:
        """Create the first user, unless it exists.

        Args:
            client: logged in at a router.

        Raises:
            DeployError: the cluster refuses.
        """
        password = self.password_file.read_text(encoding="ascii")
        try:
            client[FIRST_USER_DATABASE].command("createUser", FIRST_USER, pwd=password, roles=["root"])
        except OperationFailure as error:
            if error.code != _USER_EXISTS:
                raise DeployError(f"cannot create the first user: {reason(error)}") from error
        except PyMongoError as error:
            raise DeployError(f"cannot create the first user: {reason(error)}") from error

    def describe(self) -> dict[str, str]:
        """What ``--json`` shows; no secrets."""
        return {
            "user": FIRST_USER,
            "database": FIRST_USER_DATABASE,
            "passwordFile": str(self.password_file),
            "keyFile": str(self.key_file),
        }


NO_LOG_IN: Final[Mapping[str, Any]] = {}
"""The options of a client without access control."""


def write_once(path: Path, text: str) -> None:
    """Write a file that is private from the moment it exists, unless it exists; whole, even after a crash."""
    if path.exists():
        return
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
