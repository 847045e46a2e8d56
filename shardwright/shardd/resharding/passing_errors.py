"""Errors that pass, after which a recipient goes on where it has come to."""

from typing import Final

from shardwright.shardd.cluster.network import is_transient
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_PASSING: Final = frozenset(
    {
        ErrorCode.LockFailed,  # a note in the oplog does not wait for a lock
        ErrorCode.NotYetInitialized,  # the source has to be opened again
        ErrorCode.WriteConcernFailed,
    }
)


def is_passing(error: CommandError) -> bool:
    """Whether what failed may succeed a little later."""
    return is_transient(error) or error.code in _PASSING
