"""A command as errors, logs and ``$currentOp`` show it: without secrets; as text, long strings are cut as in mongod."""

from typing import Final

from shardwright.sharding.bson_text import value_text
from shardwright.wire.rawbson import STRING, Span, encode_elements, from_elements
from shardwright.wire.request import Request

_STRING_CHARACTERS_MAX: Final = 160
_SHOWN_CHARACTERS: Final = 150
_SECRETS: Final = frozenset({b"pwd", b"payload", b"speculativeAuthenticate"})
_SECRETS_OF_AUTHENTICATE: Final = _SECRETS | {b"key", b"nonce"}
_MASK: Final = "xxx"


def command_text(request: Request) -> str:
    """The fields of a command; its document sequences are not part of it."""
    fields = [
        f"{name.decode(errors='replace')}: {_shown(request, name, span)}" for name, span in request.fields.items()
    ]
    return f"{{ {', '.join(fields)} }}"


def shown_body(request: Request) -> bytes:
    """The body of a command with a mask in place of its secrets."""
    if _secrets(request).isdisjoint(request.fields):
        return request.body
    return from_elements(
        b"".join(
            encode_elements({name.decode(): _MASK}) if name in _secrets(request) else request.body[start:end]
            for name, (_, start, _, end) in request.fields.items()
        )
    )


def _secrets(request: Request) -> frozenset[bytes]:
    return _SECRETS_OF_AUTHENTICATE if request.name == "authenticate" else _SECRETS


def _shown(request: Request, name: bytes, span: Span) -> str:
    if name in _secrets(request):
        return f'"{_MASK}"'
    text = value_text(request.body, span)
    if span[0] == STRING and len(text) > _STRING_CHARACTERS_MAX:
        return f'{text[: _SHOWN_CHARACTERS + 1]}..."'
    return text
