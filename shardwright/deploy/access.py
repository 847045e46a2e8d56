"""Access control of a local cluster: its key file, its first user, the launcher's own login, and ``clusterAuthMode``.

::

    DIR/auth/key              authenticates the processes and the launcher, unless the cluster uses certificates
    DIR/auth/password         the first user's password
    DIR/auth/rotation.json    progress of a key rotation, while one is in progress

Only the owner can read these files. The launcher logs in with the key, or with a certificate of the cluster, so that a
changed password does not lock it out. `internal_authentication` replaces the key, and changes a cluster from one mode
to the next.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.deploy.durable_files import write_once, write_private
from shardwright.deploy.errors import DeployError, reason

FIRST_USER: Final = "root"
FIRST_USER_DATABASE: Final = "admin"

_KEY_BYTES: Final = 756
"""The size that MongoDB recommends: 1008 characters in base64, of at most 1024."""

_PASSWORD_BYTES: Final = 24
_USER_EXISTS: Final = 51003
_ITEM: Final = "- "
"""The beginning of each item of a YAML list."""

KEY_FILE: Final = "keyFile"
X509: Final = "x509"
MODES: Final = (KEY_FILE, "sendKeyFile", "sendX509", X509)
SENDS_CERTIFICATE: Final = ("sendX509", X509)
"""The modes in which a process logs in at others with a certificate."""


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
        """The file with the progress of a rotation of the key (`deploy.internal_authentication`)."""
        return self.directory / "rotation.json"

    def create(self, *, has_key: bool) -> None:
        """Create the directory, and the key if it is missing.

        Args:
            has_key: whether processes log in with a key."""
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if has_key:
                write_once(self.key_file, new_key())
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
        write_private(self.key_file, text)

    def create_first_user(self, client: MongoClient[dict[str, Any]]) -> None:
        """Create the first user and its password, unless the user exists.

        The file stays missing if it was removed, because another password would not be the user's.

        Args:
            client: logged in at a router."""
        is_missing = not self.password_file.exists()
        if is_missing:
            write_private(self.password_file, secrets.token_hex(_PASSWORD_BYTES))
        password = self.password_file.read_text(encoding="ascii")
        try:
            client[FIRST_USER_DATABASE].command("createUser", FIRST_USER, pwd=password, roles=["root"])
        except OperationFailure as error:
            if error.code != _USER_EXISTS:
                raise DeployError(f"cannot create the first user: {reason(error)}") from error
            if is_missing:
                self.password_file.unlink()
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


def has_key(mode: str) -> bool:
    """Whether processes need the key."""
    return mode != X509


def daemon_words(mode: str, key_file: Path) -> list[str]:
    """Return the options of a daemon."""
    return _words(mode, key_file, "--key-file", "--cluster-auth-mode")


def mongod_words(mode: str, key_file: Path) -> list[str]:
    """Return the options of a mongod."""
    return _words(mode, key_file, "--keyFile", "--clusterAuthMode")


def _words(mode: str, key_file: Path, key_option: str, mode_option: str) -> list[str]:
    return [
        *((key_option, str(key_file)) if has_key(mode) else ()),
        *(() if mode == KEY_FILE else (mode_option, mode)),
    ]
