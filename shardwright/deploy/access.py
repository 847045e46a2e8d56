"""Access control of a local cluster: its key file, its first user, and how the launcher itself logs in.

::

    DIR/auth/key              by which the processes recognise each other, and the launcher, unless they do so by
                              certificates
    DIR/auth/password         of the first user
    DIR/auth/rotation.json    how far a rotation of the key has come, while there is one

All are for their owner alone. The launcher logs in with the key, or with a certificate of the cluster, so that a
changed password does not lock it out.
"""

import base64
import os
import secrets
from collections.abc import Mapping, Sequence
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
_ITEM: Final = "- "
"""What begins each item of a list in YAML."""


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

    @property
    def rotation_file(self) -> Path:
        """The file with the progress of a rotation of the key (`deploy.key_rotation`)."""
        return self.directory / "rotation.json"

    def create(self, *, has_key: bool) -> None:
        """Make the files that do not exist yet.

        Args:
            has_key: whether processes log in with a key.

        Raises:
            DeployError: they cannot be written.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if has_key:
                write_once(self.key_file, new_key())
            write_once(self.password_file, secrets.token_hex(_PASSWORD_BYTES))
        except OSError as error:
            raise DeployError(f"cannot create the secrets in {self.directory}: {error.strerror}") from error

    def log_in(self) -> Mapping[str, Any]:
        """The options with which a client logs in as a part of the cluster.

        Raises:
            DeployError: the key file cannot be read.
        """
        return log_in_by_key(self.key_file)

    def keys(self) -> list[str]:
        """The keys in the key file: one, or during a rotation the new one and the old one.

        Raises:
            DeployError: the key file cannot be read.
        """
        return keys_in(self.key_file)

    def write_keys(self, keys: Sequence[str]) -> None:
        """Replace the keys, for processes that start from now on.

        Raises:
            DeployError: the file cannot be written; the old one is kept.
        """
        text = keys[0] if len(keys) == 1 else "".join(f"{_ITEM}{key}\n" for key in keys)
        try:
            _write(self.key_file, text)
        except OSError as error:
            raise DeployError(f"cannot write the key file {self.key_file}: {error.strerror}") from error

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

    def describe(self, *, has_key: bool) -> dict[str, str]:
        """What ``--json`` shows; no secrets."""
        return {
            "user": FIRST_USER,
            "database": FIRST_USER_DATABASE,
            "passwordFile": str(self.password_file),
            **({"keyFile": str(self.key_file)} if has_key else {}),
        }


NO_LOG_IN: Final[Mapping[str, Any]] = {}
"""The options of a client without access control."""


def log_in_by_key(key_file: Path) -> Mapping[str, Any]:
    """The options with which a client logs in as a part of the cluster that has this key.

    Raises:
        DeployError: the key file cannot be read.
    """
    # During a rotation every process knows the old key, which is the last one.
    key = keys_in(key_file)[-1]
    return {"username": "__system", "password": key, "authSource": "local", "authMechanism": "SCRAM-SHA-256"}


def keys_in(key_file: Path) -> list[str]:
    """The keys in a key file, see `Access.keys`.

    Raises:
        DeployError: it cannot be read.
    """
    try:
        lines = key_file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"cannot read the key file {key_file}: {error}") from error
    items = [line.removeprefix(_ITEM) for line in lines if line.startswith(_ITEM)]
    return items or ["".join("".join(lines).split())]


def new_key() -> str:
    """A random key."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def write_once(path: Path, text: str) -> None:
    """As `_write`, unless the file exists."""
    if not path.exists():
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a file that is private from the moment it exists, and whole even after a crash."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
