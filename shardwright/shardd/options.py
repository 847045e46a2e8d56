"""The command-line options of a shard daemon."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardwright.daemon.audit.log import AuditLog
from shardwright.daemon.options import add_parameter_option
from shardwright.daemon.sidecar.options import SidecarOptions, add_sidecar_options
from shardwright.shardd.commands.server_parameters import PARAMETERS, parse_parameter


@dataclass(frozen=True, slots=True)
class ShardOptions(SidecarOptions):
    """The options of a sidecar and of a shard daemon.

    Attributes:
        parameters: initial values of server parameters, where they differ from the defaults.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, parsed: argparse.Namespace, audit: AuditLog | None = None) -> "ShardOptions":
        """The parsed options; see `SidecarOptions.of`."""
        common = SidecarOptions.of(parsed, audit)
        return cls(
            **{each.name: getattr(common, each.name) for each in fields(common)}, parameters=dict(parsed.parameters)
        )


def add_shard_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a sidecar and ``--set-parameter``."""
    add_sidecar_options(parser)
    add_parameter_option(parser, parse_parameter, f"initial value of a server parameter: {', '.join(PARAMETERS)}")
