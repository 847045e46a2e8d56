"""Internal user of the processes of a cluster, as in MongoDB."""

from typing import Final

from shardwright.wire.scram.keys import Mechanism

SYSTEM_USER: Final = "__system"
SYSTEM_DATABASE: Final = "local"
SYSTEM_MECHANISM: Final = Mechanism.SHA_256
"""The only mechanism. The password is the key itself, without the hash that MongoDB applies for SCRAM-SHA-1."""
