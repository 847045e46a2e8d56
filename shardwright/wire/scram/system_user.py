"""As whom the processes of a cluster log in to each other, as in MongoDB."""

from typing import Final

from shardwright.wire.scram.keys import Mechanism

SYSTEM_USER: Final = "__system"
SYSTEM_DATABASE: Final = "local"
SYSTEM_MECHANISM: Final = Mechanism.SHA_256
"""The only one. The password is the key itself, without the hash that MongoDB makes of others for SCRAM-SHA-1."""
