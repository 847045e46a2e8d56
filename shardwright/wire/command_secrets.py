"""Secret fields of commands, such as passwords and proofs, and their removal from logs and reports. Pure."""

from typing import Final

from shardwright.wire.rawbson import encode_elements, from_elements
from shardwright.wire.request import Request

MASK: Final = "xxx"
"""Replacement for a secret."""

_SECRETS: Final = frozenset({b"pwd", b"payload", b"speculativeAuthenticate"})
_SECRETS_OF_AUTHENTICATE: Final = _SECRETS | {b"key", b"nonce"}


def secret_fields(request: Request) -> frozenset[bytes]:
    """Return the names of the fields whose values are secret in this command."""
    return _SECRETS_OF_AUTHENTICATE if request.name == "authenticate" else _SECRETS


def shown_body(request: Request) -> bytes:
    """Return the body of a command with its secrets masked."""
    secrets = secret_fields(request)
    if secrets.isdisjoint(request.fields):
        return request.body
    return from_elements(
        b"".join(
            encode_elements({name.decode(): MASK}) if name in secrets else request.body[start:end]
            for name, (_, start, _, end) in request.fields.items()
        )
    )
