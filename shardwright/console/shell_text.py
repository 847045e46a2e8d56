"""Values as mongosh shows and reads them."""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

_INT32: Final = range(-(2**31), 2**31)


def shell_text(value: Any) -> str:  # noqa: ANN401 - any value
    """Format a value so that it can be pasted into mongosh."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Int64():
            return f'NumberLong("{int(value)}")'
        case int():
            return str(value) if value in _INT32 else f'NumberLong("{value}")'
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case Mapping():
            fields = ", ".join(f"{_name(name)}: {shell_text(each)}" for name, each in value.items())
            return f"{{ {fields} }}" if fields else "{}"
        case list() | tuple():
            return f"[{', '.join(map(shell_text, value))}]"
        case datetime():
            return f'ISODate("{value.isoformat().replace("+00:00", "Z")}")'
        case ObjectId():
            return f'ObjectId("{value}")'
        case MinKey():
            return "MinKey()"
        case MaxKey():
            return "MaxKey()"
        case Decimal128():
            return f'NumberDecimal("{value}")'
        case Timestamp():
            return f"Timestamp({value.time}, {value.inc})"
        case UUID():
            return f'UUID("{value}")'
        case Regex():
            return f"RegExp({json.dumps(str(value.pattern))})"
        case Binary() | bytes():
            return f'BinData({getattr(value, "subtype", 0)}, "{_base64(value)}")'
        case _:
            return json.dumps(str(value))


def short_text(value: Any, length_max: int = 60) -> str:  # noqa: ANN401 - any value
    """Format a value for people: a bound without braces, shortened."""
    text = ", ".join(map(_plain, value.values())) if isinstance(value, Mapping) else _plain(value)
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def _plain(value: Any) -> str:  # noqa: ANN401 - any value
    match value:
        case MinKey():
            return "min"
        case MaxKey():
            return "max"
        case Int64():
            return str(int(value))
        case _:
            return shell_text(value)


def _name(name: str) -> str:
    return name if name.replace("$", "_").isidentifier() else json.dumps(name)


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")
