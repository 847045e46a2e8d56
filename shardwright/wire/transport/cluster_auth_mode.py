"""How the processes of a cluster recognise each other: by a key, by certificates, or by both while that changes.

The names, their order and the errors are those of MongoDB's ``clusterAuthMode``.
"""

from enum import Enum
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_ILLEGAL_TRANSITION: Final = 5579202


class ClusterAuthMode(Enum):
    """Which proofs a process sends and accepts; the modes are in the order in which a cluster goes through them."""

    KEY_FILE = "keyFile"
    SEND_KEY_FILE = "sendKeyFile"
    SEND_X509 = "sendX509"
    X509 = "x509"

    @property
    def sends_certificate(self) -> bool:
        """Whether a process logs in with its certificate, rather than with a key."""
        return self in (ClusterAuthMode.SEND_X509, ClusterAuthMode.X509)

    @property
    def accepts_certificate(self) -> bool:
        """Whether a certificate of a member lets a client in."""
        return self is not ClusterAuthMode.KEY_FILE

    @property
    def accepts_key(self) -> bool:
        """Whether a key lets a client in."""
        return self is not ClusterAuthMode.X509

    def __str__(self) -> str:
        return self.value


_MODES: Final = tuple(ClusterAuthMode)
UNDEFINED: Final = "undefined"
"""What MongoDB calls the mode of a process without access control."""


def mode_named(name: object) -> ClusterAuthMode:
    """The mode that a client names.

    Raises:
        CommandError: BadValue, there is none.
    """
    for mode in _MODES:
        if mode.value == name:
            return mode
    raise CommandError(ErrorCode.BadValue, f"Invalid clusterAuthMode '{name}'")


def check_transition(old: ClusterAuthMode | None, new: ClusterAuthMode) -> None:
    """Allow only the step to the next mode, so that at no time one process sends what another does not accept.

    Args:
        old: the present mode; None without access control.
        new: the wanted mode.

    Raises:
        CommandError: 5579202, it is not the next one.
    """
    if old is None or _MODES.index(new) != _MODES.index(old) + 1:
        raise CommandError(
            _ILLEGAL_TRANSITION, f"Illegal state transition for clusterAuthMode from '{old or UNDEFINED}' to '{new}'"
        )
