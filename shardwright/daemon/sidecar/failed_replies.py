"""Telling failed commands from others without decoding their replies. Pure."""

from typing import Final

FAILED: Final = b"\x01ok\0" + bytes(8)
"""A failed command's reply begins with ``ok: 0``, a mongod's as well as a daemon's."""

BODY_ELEMENTS_AT: Final = 25
"""Where the elements of its body begin in the frame."""


def has_failed(reply: bytes | None) -> bool:
    """Whether a reply's frame says that its command has failed."""
    return reply is not None and reply.startswith(FAILED, BODY_ELEMENTS_AT)
