"""The values of MongoDB's ``clusterAuthMode``, with the command line options that each mode needs.

`cluster_auth` changes a cluster from one mode to the next.
"""

from pathlib import Path
from typing import Final

KEY_FILE: Final = "keyFile"
X509: Final = "x509"
MODES: Final = (KEY_FILE, "sendKeyFile", "sendX509", X509)
SENDS_CERTIFICATE: Final = ("sendX509", X509)
"""The modes in which a process logs in at others with a certificate."""


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
