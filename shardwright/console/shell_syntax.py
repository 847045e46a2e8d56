"""The syntax of mongosh: a parser for commands, pipelines and documents, and values as mongosh shows them.

The parser runs no JavaScript. Valid texts are ``db.orders.find({…}, …).sort(…)``, ``db.orders.aggregate([…])`` and the
like, and commands as documents. Documents may have keys without quotes, strings in single quotes, comments, and the
types' constructors.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite, isnan
from typing import Any, Final, TypeVar
from uuid import UUID

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.json_util import object_hook

from shardwright.console.any_value import JSON_OPTIONS, MALFORMED, checked, value_of

DEPTH_MAX: Final = 100
LENGTH_MAX: Final = 100_000

_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)
    |(?P<number>[-+]?(?:0x[0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|Infinity))
    |(?P<word>[A-Za-z_$][\w$]*)
    |(?P<regex>/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\]|\\.)*\])+/[a-z]*)
    |(?P<mark>[{}\[\]():,.;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}

_INT32: Final = range(-(2**31), 2**31)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Value = TypeVar("Value")


class SyntaxFault(ValueError):
    """The text is not a command."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed command.

    Attributes:
        command: as a client sends it, without ``$db``.
        db: the database; empty if the text does not name it.
    """

    command: dict[str, Any]
    db: str = ""

    @property
    def collection(self) -> str:
        """The collection of the command."""
        return str(next(iter(self.command.values()), ""))


def parsed(text: str, default_db: str) -> Parsed:
    """Parse a command.

    Args:
        text: a text that a person has pasted.
        default_db: the database of ``db``.

    Raises:
        SyntaxFault: it is not valid; with the place.
    """
    if len(text) > LENGTH_MAX:
        raise SyntaxFault("the text is too long")
    return _read(text, lambda reader: reader.statement(default_db), lambda found: (found.command, found.db))


def document(text: str) -> Any:  # noqa: ANN401 - any value
    """Parse one value, for example a shard key bound.

    Raises:
        SyntaxFault: it is not valid.
    """

    def value(reader: _Reader) -> Any:  # noqa: ANN401 - any value
        found = reader.value(0)
        reader.end()
        return found

    return _read(text, value, lambda found: found)


def _read(text: str, read: Callable[["_Reader"], Value], values: Callable[[Value], Any]) -> Value:
    """Parse a text, and check that BSON can represent the parsed values."""
    try:
        found = read(_Reader(list(_tokens(text))))
        checked(values(found))
    except SyntaxFault:
        raise
    except MALFORMED as error:
        raise SyntaxFault(str(error)) from error
    return found


def extended_document(text: str) -> dict[str, Any]:
    """Parse a document that is not empty, in Extended JSON or as in mongosh.

    Raises:
        SyntaxFault: it is neither.
    """
    try:
        found = value_of(text)
    except ValueError:
        found = document(text)
    if not isinstance(found, dict) or not found:
        raise SyntaxFault(f"{text} is not a document with fields")
    return found


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise SyntaxFault(f"cannot read from: {text[at : at + 30]}")
        if found.lastgroup is not None:
            yield _Token(found.lastgroup, found[0], at)
        at = found.end()
    yield _Token("end", "", at)


class _Reader:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, text: str | None = None) -> _Token:
        token = self._next
        if text is not None and token.text != text:
            raise SyntaxFault(f"expected {text} at character {token.at + 1}, not {token.text or 'the end'}")
        self._at += token.kind != "end"
        return token

    def _has(self, text: str) -> bool:
        if self._next.text == text and self._next.kind == "mark":
            self._at += 1
            return True
        return False

    def end(self) -> None:
        while self._has(";"):
            pass
        if self._next.kind != "end":
            raise SyntaxFault(f"unexpected {self._next.text} at character {self._next.at + 1}")

    def statement(self, default_db: str) -> Parsed:
        if self._next.text == "db":
            found = self._shell_call(default_db)
        else:
            value = self.value(0)
            if not isinstance(value, dict) or not value:
                raise SyntaxFault("write db.COLLECTION.find(…), or a command as a document")
            db = value.pop("$db", default_db)
            found = Parsed(value, str(db))
        self.end()
        return found

    def _shell_call(self, db: str) -> Parsed:
        self._take("db")
        calls: list[tuple[str, list[Any]]] = []
        names: list[str] = []
        while self._has(".") or (self._next.text == "[" and not calls):
            if self._has("["):
                names.append(_text(self._take()))
                self._take("]")
                continue
            name = self._take().text
            if not self._has("("):
                names.append(name)
                continue
            arguments = self._arguments()
            if name == "getSiblingDB" and arguments:
                db = str(arguments[0])
            elif name == "getCollection" and arguments:
                names.append(str(arguments[0]))
            else:
                calls.append((name, arguments))
        return Parsed(_command(".".join(names), calls), db)

    def _arguments(self) -> list[Any]:
        found: list[Any] = []
        while not self._has(")"):
            found.append(self.value(0))
            if not self._has(","):
                self._take(")")
                break
        return found

    def value(self, depth: int) -> Any:  # noqa: ANN401 - any value
        if depth > DEPTH_MAX:
            raise SyntaxFault("the text is nested too deep")
        token = self._take()
        if token.text == "{" and token.kind == "mark":
            return self._object(depth)
        if token.text == "[" and token.kind == "mark":
            return self._list(depth)
        if token.kind == "string":
            return _text(token)
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "regex":
            pattern, _, flags = token.text[1:].rpartition("/")
            return Regex(pattern, flags)
        if token.kind == "word":
            if token.text == "new":
                token = self._take()
            if token.text in _WORDS:
                if self._has("("):
                    self._take(")")
                return _WORDS[token.text]
            if self._has("("):
                return _constructed(token.text, self._arguments())
        raise SyntaxFault(f"unexpected {token.text or 'end'} at character {token.at + 1}")

    def _object(self, depth: int) -> Any:  # noqa: ANN401 - extended JSON makes other values
        found: dict[str, Any] = {}
        while not self._has("}"):
            token = self._take()
            if token.kind not in ("string", "word", "number"):
                raise SyntaxFault(f"expected a field name at character {token.at + 1}")
            self._take(":")
            found[_text(token) if token.kind == "string" else token.text] = self.value(depth + 1)
            if not self._has(","):
                self._take("}")
                break
        try:
            return object_hook(found, JSON_OPTIONS)
        except MALFORMED as error:
            raise SyntaxFault(str(error)) from error

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._has("]"):
            found.append(self.value(depth + 1))
            if not self._has(","):
                self._take("]")
                break
        return found


_WORDS: Final = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": None,
    "MinKey": MinKey(),
    "MaxKey": MaxKey(),
    "NaN": float("nan"),
    "Infinity": float("inf"),
}


def _text(token: _Token) -> str:
    def unescaped(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if escape[0] in "ux" and len(escape) > 1 else _ESCAPES.get(escape, escape)

    if token.kind != "string":
        raise SyntaxFault(f"expected a string at character {token.at + 1}")
    text = _ESCAPE.sub(unescaped, token.text[1:-1])
    return text.encode("utf-16", "surrogatepass").decode("utf-16")  # two escapes may be one character


def _number(text: str) -> int | float:
    if "0x" in text.lower():
        return int(text, 16)
    if text.lstrip("+-") == "Infinity":
        return float(text)
    number = float(text)
    return int(number) if number.is_integer() and "." not in text and "e" not in text.lower() else number


def _constructed(name: str, arguments: list[Any]) -> Any:  # noqa: ANN401 - any value
    first = arguments[0] if arguments else None
    try:
        match name:
            case "ObjectId" | "ObjectID":
                return ObjectId(first) if arguments else ObjectId()
            case "ISODate" | "Date":
                return _date(first) if arguments else datetime.now(UTC)
            case "NumberLong" | "Long":
                return Int64(int(first or 0))
            case "NumberInt" | "Int32" | "Number":
                return int(first or 0)
            case "NumberDecimal" | "Decimal128":
                return Decimal128(str(first))
            case "Double":
                return float(first or 0)
            case "UUID":
                return Binary(bytes.fromhex(str(first).replace("-", "")), 4)
            case "BinData":
                return object_hook({"$binary": {"base64": str(arguments[1]), "subType": f"{int(first or 0):02x}"}})
            case "Timestamp":
                return Timestamp(int(first or 0), int(arguments[1]))
            case "RegExp":
                return Regex(str(first), *map(str, arguments[1:2]))
    except MALFORMED as error:
        raise SyntaxFault(f"{name} has unsuitable arguments: {error}") from error
    raise SyntaxFault(f"{name} is not known here")


def _date(value: Any) -> datetime | DatetimeMS:  # noqa: ANN401 - milliseconds or text
    if isinstance(value, int | float):
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            return DatetimeMS(int(value))
    found = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _command(collection: str, calls: list[tuple[str, list[Any]]]) -> dict[str, Any]:
    """Return the command that calls of the shell send."""
    calls = [call for call in calls if call[0] not in ("explain", "pretty", "toArray", "next", "forEach")]
    if not calls:
        raise SyntaxFault("write what to do with the collection, for example .find({…})")
    name, arguments = calls[0]
    if name == "runCommand" and not collection:
        if arguments and isinstance(arguments[0], dict):
            return dict(arguments[0])
        raise SyntaxFault("runCommand needs a document")
    if not collection:
        raise SyntaxFault("write the collection, for example db.orders.find({…})")
    first: Any = arguments[0] if arguments else {}
    second: Any = arguments[1] if len(arguments) > 1 else {}
    match name:
        case "find" | "findOne":
            command: dict[str, Any] = {"find": collection, "filter": first or {}}
            if second:
                command["projection"] = second
            if name == "findOne":
                command["limit"] = 1
            for each, given in calls[1:]:
                if each in ("sort", "limit", "skip", "hint", "collation", "projection") and given:
                    command[each] = given[0]
            return command
        case "aggregate":
            pipeline = first if isinstance(first, list) else arguments
            return {"aggregate": collection, "pipeline": pipeline, "cursor": {}}
        case "count" | "countDocuments":
            return {"count": collection, "query": first}
        case "distinct":
            return {"distinct": collection, "key": first, "query": second}
        case "insertOne":
            return {"insert": collection, "documents": [first]}
        case "insertMany":
            return {"insert": collection, "documents": first if isinstance(first, list) else [first]}
        case "updateOne" | "updateMany" | "replaceOne":
            options = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], dict) else {}
            update = {"q": first, "u": second, "multi": name == "updateMany", "upsert": bool(options.get("upsert"))}
            return {"update": collection, "updates": [update]}
        case "deleteOne" | "deleteMany":
            return {"delete": collection, "deletes": [{"q": first, "limit": 0 if name == "deleteMany" else 1}]}
        case "findOneAndUpdate" | "findOneAndReplace":
            return {"findAndModify": collection, "query": first, "update": second}
        case "findOneAndDelete":
            return {"findAndModify": collection, "query": first, "remove": True}
    raise SyntaxFault(f"{name} cannot be explained; find, aggregate, count, distinct, insert, update and delete can")


_REGEX_FLAGS: Final = {"i": re.I, "l": re.L, "m": re.M, "s": re.S, "u": re.U, "x": re.X}


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
        case float() if not isfinite(value):
            return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case Mapping():
            fields = ", ".join(f"{_name(name)}: {shell_text(each)}" for name, each in value.items())
            return f"{{ {fields} }}" if fields else "{}"
        case list() | tuple():
            return f"[{', '.join(map(shell_text, value))}]"
        case datetime():
            return f'ISODate("{value.isoformat().replace("+00:00", "Z")}")'
        case DatetimeMS():
            return f"new Date({int(value)})"
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
            flags = "".join(letter for letter, flag in _REGEX_FLAGS.items() if value.flags & flag)
            arguments = [str(value.pattern), flags] if flags else [str(value.pattern)]
            return f"RegExp({', '.join(map(json.dumps, arguments))})"
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
