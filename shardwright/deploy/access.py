"""Access control of a local cluster: its key file, its first user, and the launcher's own log-in.

::

    DIR/auth/key              authenticates the processes and the launcher, unless the cluster uses certificates
    DIR/auth/password         the first user's password
    DIR/auth/rotation.json    progress of a key rotation, while one is in progress

Only the owner can read these files. The launcher logs in with the key, or with a certificate of the cluster, so that a
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
"""The size that MongoDB recommends: 1008 characters in base64, of at most 1024."""
_PASSWORD_BYTES: Final = 24
_USER_EXISTS: Final = 51003
_ITEM: Final = "- "
"""The beginning of each item of a YAML list."""


@dataclass(frozen=True)
class Access:
    """The files of a cluster with access control."""

    directory: Path

    @property
    def key_file(self) -> Path:
        """The key file, for ``--key-file``."""
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
        """Create the missing files.

        Args:
            has_key: whether processes log in with a key."""
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if has_key:
                write_once(self.key_file, new_key())
            write_once(self.password_file, secrets.token_hex(_PASSWORD_BYTES))
        except OSError as error:
            raise DeployError(f"cannot create the secrets in {self.directory}: {error.strerror}") from error

    def log_in(self) -> Mapping[str, Any]:
        """Return the client options for logging in as a member of the cluster."""
        return log_in_by_key(self.key_file)

    def keys(self) -> list[str]:
        """Return the keys in the key file: one, or during a rotation the new one and the old one."""
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
            client: logged in at a router."""
        password = self.password_file.read_text(encoding="ascii")
        try:
            client[FIRST_USER_DATABASE].command("createUser", FIRST_USER, pwd=password, roles=["root"])
        except OperationFailure as error:
            if error.code != _USER_EXISTS:
                raise DeployError(f"cannot create the first user: {reason(error)}") from error
        except PyMongoError as error:
            raise DeployError(f"cannot create the first user: {reason(error)}") from error

    def describe(self, *, has_key: bool) -> dict[str, str]:
        """Return the entry for ``--json``; it has no secrets."""
        return {
            "user": FIRST_USER,
            "database": FIRST_USER_DATABASE,
            "passwordFile": str(self.password_file),
            **({"keyFile": str(self.key_file)} if has_key else {}),
        }


NO_LOG_IN: Final[Mapping[str, Any]] = {}
"""The options of a client without access control."""


def log_in_by_key(key_file: Path) -> Mapping[str, Any]:
    """Return the client options for logging in as a member of the cluster that has this key."""
    # During a rotation the old key comes last, and every process accepts it.
    key = keys_in(key_file)[-1]
    return {"username": "__system", "password": key, "authSource": "local", "authMechanism": "SCRAM-SHA-256"}


def keys_in(key_file: Path) -> list[str]:
    """Return the keys in a key file, as `Access.keys`."""
    try:
        lines = key_file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"cannot read the key file {key_file}: {error}") from error
    items = [line.removeprefix(_ITEM) for line in lines if line.startswith(_ITEM)]
    return items or ["".join("".join(lines).split())]


def new_key() -> str:
    """Generate a random key."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def write_once(path: Path, text: str) -> None:
    """Write a private file, unless it exists."""
    if not path.exists():
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a file that is private from its creation and complete even after a crash."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
