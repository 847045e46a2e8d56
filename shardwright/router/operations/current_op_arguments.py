"""The specification of a ``$currentOp`` stage, which a router parses only for its own operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.type_names import type_name_of

CURRENT_OP: Final = "$currentOp"

_OPTIONS: Final = frozenset(
    {"allUsers", "backtrace", "idleConnections", "idleCursors", "idleSessions", "localOps", "truncateOps"}
)


@dataclass(frozen=True, slots=True)
class CurrentOpArguments:
    """What is to be shown of the operations of one process.

    Attributes:
        idle_connections: connections without an operation too.
        idle_cursors: open cursors that nobody reads at the moment too.
        truncate_ops: long commands only as the beginning of their text.
        idle_sessions: open transactions in which no command is running too.
        all_users: under access control those of other users too.
    """

    idle_connections: bool = False
    idle_cursors: bool = False
    truncate_ops: bool = False
    idle_sessions: bool = True
    all_users: bool = False

    @classmethod
    def parse(cls, specification: object) -> "CurrentOpArguments":
        """Parse the specification of the stage.

        Raises:
            CommandError: TypeMismatch, FailedToParse.
        """
        if not isinstance(specification, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"$currentOp options must be specified in an object, but found: {type_name_of(specification)}",
            )
        for name, value in specification.items():
            if name not in _OPTIONS:
                raise CommandError(ErrorCode.FailedToParse, f"Unrecognized option '{name}' in $currentOp stage.")
            if not isinstance(value, bool):
                raise CommandError(
                    ErrorCode.TypeMismatch,
                    f"The '{name}' parameter of the $currentOp stage must be a boolean value, "
                    f"but found: {type_name_of(value)}",
                )
        return cls(
            bool(specification.get("idleConnections")),
            bool(specification.get("idleCursors")),
            bool(specification.get("truncateOps")),
            bool(specification.get("idleSessions", True)),
            bool(specification.get("allUsers")),
        )

    def document(self) -> dict[str, bool]:
        """What `parse` takes."""
        return {
            "idleConnections": self.idle_connections,
            "idleCursors": self.idle_cursors,
            "truncateOps": self.truncate_ops,
            "idleSessions": self.idle_sessions,
            "allUsers": self.all_users,
        }
