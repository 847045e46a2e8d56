"""Redaction: with ``--redact-client-log-data`` no data of clients stand in the log of a daemon.

Of each line the time, the level, the component and the sentence remain, numbers, and the fields that are known to name
parts of the cluster only; everything else is replaced, so that a new field is redacted until it is listed here. As in
MongoDB, namespaces and addresses are not redacted.
"""

from collections.abc import Mapping
from traceback import format_tb
from typing import Any, Final

REDACTED: Final = "###"

_KEPT: Final = frozenset(
    {
        *("addresses", "command", "component", "configdb", "daemon", "db", "host", "kind", "mongod", "namespace"),
        *("namespaces", "outcome", "phase", "primary", "recipient", "remote", "replica_set", "shard", "shards"),
        *("sidecar", "stack", "state", "step", "suffix", "to_shard", "version"),
    }
)


class Redaction:
    """Whether the log of this process is redacted.

    Attributes:
        is_on: it is.
    """

    def __init__(self) -> None:
        self.is_on = False

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a line as they may be written."""
        if not self.is_on:
            return dict(fields)
        return {name: value if _may_stay(name, value) else REDACTED for name, value in fields.items()}

    def message(self, message: str, *, is_own: bool) -> str:
        """The sentence of a line.

        Args:
            message: as it was logged.
            is_own: whether it is a sentence of this code, without any data.
        """
        return message if is_own or not self.is_on else REDACTED

    def traceback(self, error: BaseException | None, whole: str) -> str:
        """The traceback of an error: without what the error says.

        Args:
            error: the error.
            whole: the traceback with it.
        """
        if not self.is_on or error is None:
            return whole
        return "".join([*format_tb(error.__traceback__), f"{type(error).__name__}: {REDACTED}"])


def _may_stay(name: str, value: object) -> bool:
    return name in _KEPT or value is None or isinstance(value, bool | int | float)


REDACTION: Final = Redaction()
"""That of this process."""
