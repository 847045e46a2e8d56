"""Reading a key file, which authenticates the processes of a cluster to each other; the rules are mongod's.

The file has one key, or a YAML list of at most two, so that keys can be changed one process at a time.
"""

import os
import re
from pathlib import Path
from stat import S_IRWXG, S_IRWXO
from typing import Final

KEY_CHARACTERS_MIN: Final = 6
KEY_CHARACTERS_MAX: Final = 1024
KEYS_MAX: Final = 2
_FILE_BYTES_MAX: Final = 1 << 20

_KEY: Final = re.compile(r"[A-Za-z0-9+/=]*")
_ITEM: Final = re.compile(r"^-[ \t]+", re.MULTILINE)
_QUOTES: Final = ("'", '"')


def read_key_file(path: Path) -> tuple[str, ...]:
    """Return the keys, the one to log in with first.

    Raises:
        OSError: the file cannot be read.
        ValueError: a key is invalid, or others than the owner may read the file; the message is for the operator.
    """
    descriptor = os.open(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & (S_IRWXG | S_IRWXO):
            raise ValueError(f"permissions on {path} are too open")
        content = file.read(_FILE_BYTES_MAX)
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"invalid char in key file {path}") from None
    keys = tuple(_checked(path, each) for each in _items(text))
    if len(keys) > KEYS_MAX:
        raise ValueError(f"Only two keys are supported in the security key file {path}")
    return keys


def _items(text: str) -> list[str]:
    """Return the items of a list, or the whole text as the only one."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if not _ITEM.match(lines.lstrip()):
        return [lines]
    return _ITEM.split(lines.lstrip())[1:]


def _checked(path: Path, item: str) -> str:
    """Return a key without its white space, which is ignored."""
    key = "".join(item.split())
    if len(key) > 1 and key[0] == key[-1] and key[0] in _QUOTES:
        key = key[1:-1]
    if not _KEY.fullmatch(key):
        raise ValueError(f"invalid char in key file {path}")
    if not KEY_CHARACTERS_MIN <= len(key) <= KEY_CHARACTERS_MAX:
        raise ValueError(
            f"security key in {path} has length {len(key)}, must be between {KEY_CHARACTERS_MIN} and "
            f"{KEY_CHARACTERS_MAX} chars"
        )
    return key
