"""The cluster's default read and write concern, for requests that have none (``setDefaultRWConcern``)."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.passages import EPOCH
from shardwright.wire.rawbson import encode_elements

_READ: Final = "defaultReadConcern"
_WRITE: Final = "defaultWriteConcern"
_GLOBAL: Final = "global"
"""The source of an explicitly set default. Implicit defaults are not sent, because the shards have the same ones."""


class DefaultConcerns:
    """The default concerns as last reported by the config servers.

    Attributes:
        read: the element ``readConcern`` for requests without one; empty if no default was set.
        write: the element ``writeConcern`` for requests without one; empty if no default was set.
        is_any_set: whether one of them is set.
        report: the fields of ``getDefaultRWConcern``; empty before the first report.
    """

    def __init__(self) -> None:
        self.read = b""
        self.write = b""
        self.is_any_set = False
        self.report: Mapping[str, Any] = {}

    def take(self, report: Mapping[str, Any]) -> None:
        """Store the reply of a config server to ``getDefaultRWConcern`` or ``setDefaultRWConcern``."""
        self.report = report
        was_any_set = self.is_any_set
        self.read = self._element("readConcern", _READ)
        self.write = self._element("writeConcern", _WRITE)
        self.is_any_set = bool(self.read or self.write)
        if self.is_any_set != was_any_set:
            EPOCH.bump()

    def _element(self, argument: str, field: str) -> bytes:
        if field not in self.report or self.report.get(f"{field}Source") != _GLOBAL:
            return b""
        return encode_elements({argument: self.report[field]})
