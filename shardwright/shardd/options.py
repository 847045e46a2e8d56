"""Options of a shard daemon."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardwright.daemon.audit.log import AuditLog
from shardwright.daemon.sidecar.options import SidecarOptions


@dataclass(frozen=True, slots=True)
class ShardOptions(SidecarOptions):
    """Options of a sidecar and of a shard daemon, with initial values of server parameters."""

    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, parsed: argparse.Namespace, audit: AuditLog | None = None) -> "ShardOptions":
        """Return the parsed options; see `SidecarOptions.of`."""
        common = SidecarOptions.of(parsed, audit)
        return cls(
            **{each.name: getattr(common, each.name) for each in fields(common)}, parameters=dict(parsed.parameters)
        )
