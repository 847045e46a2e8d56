"""Log lines by syntax tree: which calls write one, and which of them break the rules."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardwright.wire.logger import RESERVED

LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception"})

OTHER_NAMES: Final = {
    "ns": "namespace",
    "collection": "namespace",
    "database": "db",
    "session_id": "session",
    "migration_id": "migration",
    "shard_id": "shard",
    "connection": "connection_id",
    "cursor": "cursor_id",
    "address": "remote",
    "reason": "error",
    "message": "error",
    "ms": "duration_ms",
    "millis": "duration_ms",
    "extra": "fields",
}
"""Names that a field might have, each with the one by which all lines call it."""

_SNAKE_CASE: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MESSAGE: Final = re.compile(r"[A-Z][^%{}\n]*[^.!?:;,\s]")


@dataclass(frozen=True)
class Line:
    """A call that writes a line.

    Attributes:
        number: of the line in its file.
        call: the call.
    """

    number: int
    call: ast.Call

    def faults(self) -> Iterator[str]:
        """Yield the faults of the line."""
        message = _constant(self.call.args)
        if message is None:
            yield f"{self.number}: the message is not one constant string"
        elif not _MESSAGE.fullmatch(message):
            yield f"{self.number}: the message is not a sentence without punctuation at its end: {message}"
        for name in filter(None, (keyword.arg for keyword in self.call.keywords)):
            if name in OTHER_NAMES:
                yield f"{self.number}: the field {name} is called {OTHER_NAMES[name]}"
            if name in RESERVED or not _SNAKE_CASE.fullmatch(name):
                yield f"{self.number}: a field cannot be called {name}"


def _constant(arguments: list[ast.expr]) -> str | None:
    match arguments:
        case [ast.Constant(value=str(text))]:
            return text
    return None


def lines(tree: ast.AST) -> Iterator[Line]:
    """Yield the calls in a module that write a log line: calls of a logger's methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            owner = ast.unparse(node.func.value)
            if "logger" in owner:
                yield Line(node.lineno, node)


def other_ways(tree: ast.AST) -> Iterator[str]:
    """The standard library's loggers, and ``print``, where a module uses them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(each.name.split(".")[0] == "logging" for each in node.names):
            yield f"{node.lineno}: imports logging"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "logging":
            yield f"{node.lineno}: imports from logging"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{node.lineno}: prints"
