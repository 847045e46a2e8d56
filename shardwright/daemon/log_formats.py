"""The fields of a log line, redacted, as our JSON or in the form of mongod's log."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from traceback import format_tb
from typing import Any, Final
from zlib import crc32

REDACTED: Final = "###"

_KEPT: Final = frozenset(
    {
        *("addresses", "command", "component", "configdb", "daemon", "db", "host", "kind", "mongod", "namespace"),
        *(
            "namespaces",
            "options",
            "outcome",
            "phase",
            "primary",
            "recipient",
            "remote",
            "replica_set",
            "shard",
            "shards",
        ),
        *("sidecar", "stack", "state", "step", "suffix", "to_shard", "version"),
    }
)
"""Fields that never contain clients' data, so that redaction keeps their text. A new one must be added here."""


class Redaction:
    """The redaction setting of a process's log."""

    def __init__(self) -> None:
        self.is_on = False

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a line, redacted if necessary."""
        if not self.is_on:
            return dict(fields)
        return {name: value if _may_stay(name, value) else REDACTED for name, value in fields.items()}

    def message(self, message: str, *, is_own: bool) -> str:
        """Return the sentence of a line, redacted unless it is a constant of this code."""
        return message if is_own or not self.is_on else REDACTED

    def traceback(self, error: BaseException | None, whole: str) -> str:
        """Return the traceback of an error, without its message if redacted."""
        if not self.is_on or error is None:
            return whole
        return "".join([*format_tb(error.__traceback__), f"{type(error).__name__}: {REDACTED}"])


def _may_stay(name: str, value: object) -> bool:
    return name in _KEPT or value is None or isinstance(value, bool | int | float)


REDACTION: Final = Redaction()
"""The redaction setting of this process."""


_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def message_of(record: logging.LogRecord) -> str:
    """Return the sentence of a line."""
    return REDACTION.message(record.getMessage(), is_own="fields" in vars(record))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line: the fields of `wire.logger`, and extra attributes of a library's record."""
    attributes = vars(record)
    fields = dict(attributes.get("fields", {}))
    fields.update(
        (name, value) for name, value in attributes.items() if name not in _RECORD_ATTRIBUTES and name != "fields"
    )
    return REDACTION.fields(fields)


def traceback_of(record: logging.LogRecord) -> str | None:
    """Return the traceback of a line; None if it has none."""
    if not record.exc_info:
        return None
    return REDACTION.traceback(record.exc_info[1], logging.Formatter().formatException(record.exc_info))


OWN_IDS_FROM: Final = 9_000_000
_OWN_IDS: Final = 1_000_000

_SEVERITIES: Final = {logging.DEBUG: "D1", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}

_COMPONENTS: Final = {
    "config_servers": "SHARDING",
    "configd": "SHARDING",
    "daemon": "CONTROL",
    "daemon.audit": "ACCESS",
    "daemon.http": "NETWORK",
    "daemon.sidecar": "REPL",
    "daemon.tls": "NETWORK",
    "router": "SHARDING",
    "router.access": "ACCESS",
    "router.change_streams": "QUERY",
    "router.commands": "COMMAND",
    "router.cursors": "QUERY",
    "router.operations": "COMMAND",
    "router.routing": "SH_REFR",
    "router.sessions": "CONTROL",
    "router.workers": "CONTROL",
    "shardd": "SHARDING",
    "shardd.ddl": "SHARDING",
    "shardd.migration": "MIGRATE",
    "shardd.operations": "COMMAND",
    "shardd.refresh": "SH_REFR",
    "shardd.resharding": "RESHARD",
    "shardd.transactions": "TXN",
    "shardd.two_phase_commit": "TXN",
    "wire": "NETWORK",
    "wire.abandoned": "CONNPOOL",
    "wire.cursor": "QUERY",
    "wire.pools": "CONNPOOL",
}
"""MongoDB's component of each logger; an unlisted logger has the same as the logger above it."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of mongod.

    Attributes:
        attributes: mongod's names of our fields, where they are not the camel case form.
    """

    id: int
    message: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    component: str | None = None
    context: str | None = None


_CONNECTION: Final = {"connections": "connectionCount"}
_SLOW: Final = {
    "shape": "queryShape",
    "reply_bytes": "reslen",
    "request_bytes": "requestBytes",
    "documents": "nreturned",
}

_LINES: Final = {
    "Connection accepted": _Line(22943, "Connection accepted", _CONNECTION, context="listener"),
    "Connection ended": _Line(22944, "Connection ended", _CONNECTION),
    "Slow operation": _Line(51803, "Slow query", _SLOW, "COMMAND"),
    "Lost a replica set member": _Line(4712102, "Host failed in replica set", {"remote": "host"}),
    "Listening": _Line(23016, "Waiting for connections"),
}
"""mongod's line for each of our sentences with the same meaning."""

_ATTRIBUTES: Final = {"namespace": "ns", "duration_ms": "durationMillis", "db": "db"}


class MongodbFormatter(logging.Formatter):
    """A formatter of log records as lines of mongod."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        fields, message = fields_of(record), message_of(record)
        line = _LINES.get(message) or _Line(own_id(message), message)
        connection = fields.get("connection_id")
        attributes = {_attribute(name, line): value for name, value in fields.items()}
        traceback = traceback_of(record)
        if traceback is not None:
            attributes["traceback"] = traceback
        if line.id == _LINES["Slow operation"].id:
            attributes = {"type": "command", **attributes}
        document = {
            "t": {"$date": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")},
            "s": _SEVERITIES.get(record.levelno, "I"),
            "c": line.component or component_of(record.name),
            "id": line.id,
            "ctx": line.context or (record.name if connection is None else f"conn{connection}"),
            "msg": line.message,
            **({"attr": attributes} if attributes else {}),
        }
        return json.dumps(document, default=str, ensure_ascii=False, separators=(",", ":"))


def own_id(message: str) -> int:
    """Return the id of a sentence that mongod does not have."""
    return OWN_IDS_FROM + crc32(message.encode()) % _OWN_IDS


def component_of(logger: str) -> str:
    """Return MongoDB's component of a logger; ``-``, its default, for libraries' loggers."""
    while logger:
        if logger in _COMPONENTS:
            return _COMPONENTS[logger]
        logger = logger.rpartition(".")[0]
    return "-"


def _attribute(name: str, line: _Line) -> str:
    known = line.attributes.get(name) or _ATTRIBUTES.get(name)
    if known is not None:
        return known
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
