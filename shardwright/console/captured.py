"""Captured operations, one in each line of a text. Without I/O.

A line may be a command in Extended JSON, text as in mongosh, or a slow operation in the log of a mongod or router. A
router's line has no values, only the shape of the operation and the contacted shards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.errors import BSONError
from bson.json_util import JSONOptions, loads

from shardwright.console.shell_syntax import SyntaxFault, parsed

_SLOW_ID: Final = 51803
_OWN_SLOW: Final = "Slow operation"
_OPTIONS: Final = JSONOptions(tz_aware=True)
_OF_TYPE: Final = {"update": ("update", "updates"), "remove": ("delete", "deletes")}


@dataclass(frozen=True, slots=True)
class Captured:
    """One operation.

    Attributes:
        line: number of its line, from 1.
        command: the command; empty if only the shape is known.
        shape: the command without values; None if the command is known.
        shards: the contacted shards, if the line has them.
    """

    line: int
    db: str
    command: Mapping[str, Any]
    collection: str
    shape: Mapping[str, Any] | None = None
    shards: Sequence[str] | None = None


class Unusable(ValueError):
    """The line has no operation; the message is the reason."""


def captured(text: str, line: int, default_db: str) -> Captured:
    """Parse the operation of one line.

    Args:
        default_db: the database of a command that names none.

    Raises:
        Unusable: there is none.
    """
    text = text.strip()
    if not text:
        raise Unusable("an empty line")
    if not text.startswith("{"):
        return _of_shell(text, line, default_db)
    try:
        document = loads(text, json_options=_OPTIONS)
    except (ValueError, TypeError, BSONError):
        return _of_shell(text, line, default_db)
    if not isinstance(document, dict):
        raise Unusable("not a document")
    attributes = document.get("attr")
    if isinstance(attributes, dict):
        if document.get("id") != _SLOW_ID:
            raise Unusable("a log line about something else")
        return _of_log(attributes, line)
    if document.get("msg") == _OWN_SLOW:
        return _of_router(document, line)
    if "component" in document and "msg" in document:
        raise Unusable("a log line about something else")
    command = document.get("command")
    if isinstance(command, dict):
        namespace = str(document.get("ns", ""))
        db = document.get("databaseName") or document.get("db") or namespace.partition(".")[0] or default_db
        return _of_command(_whole(command, str(document.get("op", "")), namespace), line, str(db))
    return _of_command(document, line, default_db)


def _of_shell(text: str, line: int, default_db: str) -> Captured:
    try:
        found = parsed(text, default_db)
    except SyntaxFault as fault:
        raise Unusable(str(fault)) from fault
    return _of_command(found.command, line, found.db)


def _of_log(attributes: Mapping[str, Any], line: int) -> Captured:
    command, namespace = attributes.get("command"), str(attributes.get("ns", ""))
    if not isinstance(command, dict):
        return _of_router({**attributes, "namespace": namespace, "shape": attributes.get("queryShape")}, line)
    if "$truncated" in command:
        raise Unusable("the server has shortened the command")
    return _of_command(_whole(command, str(attributes.get("type", "")), namespace), line, namespace.partition(".")[0])


def _whole(command: dict[str, Any], kind: str, namespace: str) -> dict[str, Any]:
    """Return a whole command; for updates and deletes servers log single statements instead."""
    named = _OF_TYPE.get(kind)
    if named is None or "q" not in command:
        return command
    name, statements = named
    fields = {field: value for field, value in command.items() if field in ("q", "u", "multi", "upsert", "collation")}
    if name == "delete":
        fields["limit"] = command.get("limit", 0)
    return {name: namespace.partition(".")[2], statements: [fields]}


def _of_router(line_fields: Mapping[str, Any], line: int) -> Captured:
    namespace, shape, shards = line_fields.get("namespace"), line_fields.get("shape"), line_fields.get("shards")
    if not isinstance(shape, dict) or not shape or not isinstance(shards, list):
        raise Unusable("the line has neither a command nor a shape")
    db, _, collection = str(namespace).partition(".")
    return Captured(line, db, {}, collection, shape, [str(each) for each in shards])


def _of_command(command: Mapping[str, Any], line: int, default_db: str) -> Captured:
    collection = next(iter(command.values()), None)
    if not isinstance(collection, str):
        raise Unusable("not a command on a collection")
    return Captured(line, str(command.get("$db", default_db)), command, collection)
