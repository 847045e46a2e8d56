"""Small files that survive a crash: even after a power cut a reader sees either the old file or the new one.

Each writer has a temporary file of its own beside the target, so that two commands at once do not write into one file.
A symbolic link stays, and the file that it names is replaced: secrets may be kept on another volume.
Commands that must not overlap lock the directory.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from shardwright.deploy.errors import DeployError

_OWN_FILE: Final = 0o644
"""Readable for others, but not writable, whatever the umask allows."""
_PRIVATE_FILE: Final = 0o600
_UNFINISHED_SUFFIX: Final = ".new"


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` to ``path`` as `write_text` does."""
    write_text(path, json.dumps(document, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically.

    Raises:
        DeployError: it cannot be written, for example because the disk is full; the old file is kept.
    """
    _replace(path, text, _OWN_FILE)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, from its creation on; errors as `write_text`."""
    _replace(path, text, _PRIVATE_FILE)


def write_once(path: Path, text: str) -> None:
    """Write a private file, unless it exists."""
    if not path.exists():
        write_private(path, text)


def is_unfinished(name: str, of: str) -> bool:
    """Whether a killed writer of the file ``of`` has left a file of this name."""
    return name.startswith(f"{of}.") and name.endswith(_UNFINISHED_SUFFIX)


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Lock a directory during the block; other commands that lock it wait.

    Raises:
        OSError: it is not a directory, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems lock no directories
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str, mode: int) -> None:
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{secrets.token_hex(4)}{_UNFINISHED_SUFFIX}")
    try:
        try:
            _write_through(unfinished, text, mode)
            unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)
    except OSError as error:
        raise DeployError(f"cannot write {path}: {error.strerror}; fix this and run the command again") from error


def _write_through(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # Without this, a power cut may leave an empty file under the new name.
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
