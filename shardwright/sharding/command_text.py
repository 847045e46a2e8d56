"""A command as errors show it: without secrets, and with long strings cut, as mongod does it."""

from typing import Final

from shardwright.sharding.bson_text import value_text
from shardwright.wire.rawbson import STRING, Span
from shardwright.wire.request import Request

_STRING_CHARACTERS_MAX: Final = 160
_SHOWN_CHARACTERS: Final = 150
_SECRETS: Final = frozenset({b"pwd", b"payload", b"speculativeAuthenticate"})
_SECRETS_OF_LOG_INS: Final = frozenset({b"key", b"nonce"})
"""Of ``authenticate``; elsewhere they are arguments like others."""

_MASKED: Final = '"xxx"'


def command_text(request: Request) -> str:
    """The fields of a command; its document sequences are not part of it."""
    fields = [
        f"{name.decode(errors='replace')}: {_shown(request, name, span)}" for name, span in request.fields.items()
    ]
    return f"{{ {', '.join(fields)} }}"


def _shown(request: Request, name: bytes, span: Span) -> str:
    if name in _SECRETS or (name in _SECRETS_OF_LOG_INS and request.name == "authenticate"):
        return _MASKED
    text = value_text(request.body, span)
    if span[0] == STRING and len(text) > _STRING_CHARACTERS_MAX:
        return f'{text[: _SHOWN_CHARACTERS + 1]}..."'
    return text
