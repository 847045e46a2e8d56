"""Small files that survive a crash: even after a power cut a reader sees either the old file or the new one."""

import json
import os
from pathlib import Path
from typing import Any

from shardwright.deploy.errors import DeployError

UNFINISHED_SUFFIX = ".new"

_OWN_FILE = 0o644
"""Readable for others, but not writable, whatever the umask allows."""


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` to ``path`` as `write_text` does."""
    write_text(path, json.dumps(document, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically.

    Raises:
        DeployError: it cannot be written, for example because the disk is full; the old file is kept.
    """
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
    try:
        _write_through(unfinished, text)
        unfinished.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise DeployError(f"cannot write {path}: {error.strerror}; fix this and run the command again") from error


def _write_through(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWN_FILE)
    with os.fdopen(descriptor, "w") as file:
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
