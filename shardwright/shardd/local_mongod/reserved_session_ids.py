"""The sessions whose transactions move documents. Change streams leave out events with their ids."""

from typing import Final
from uuid import UUID

from shardwright.daemon.reserved_session_ids import RESERVED_ID_START

RESERVED_SESSION_IDS: Final = tuple(
    UUID(bytes=RESERVED_ID_START + b"\0\0\0\0" + bytes((number,))) for number in range(8)
)
"""The reserved session ids, the same on all shards: the product's name and a number."""
