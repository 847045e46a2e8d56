"""A command as text in errors, without secrets; long strings are cut as in mongod."""

from typing import Final

from shardwright.sharding.bson_text import value_text
from shardwright.wire.command_secrets import MASK, secret_fields
from shardwright.wire.rawbson import STRING, Span
from shardwright.wire.request import Request

_STRING_CHARACTERS_MAX: Final = 160
_SHOWN_CHARACTERS: Final = 150


def command_text(request: Request) -> str:
    """The fields of a command; its document sequences are not part of it."""
    fields = [
        f"{name.decode(errors='replace')}: {_shown(request, name, span)}" for name, span in request.fields.items()
    ]
    return f"{{ {', '.join(fields)} }}"


def _shown(request: Request, name: bytes, span: Span) -> str:
    if name in secret_fields(request):
        return f'"{MASK}"'
    text = value_text(request.body, span)
    if span[0] == STRING and len(text) > _STRING_CHARACTERS_MAX:
        return f'{text[: _SHOWN_CHARACTERS + 1]}..."'
    return text
