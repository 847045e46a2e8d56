"""The fail points of the shard daemon, under MongoDB's names where it has such a place."""

from typing import Final

DONOR: Final = tuple(f"moveChunkHangAtStep{step}" for step in range(1, 8))
"""The donor waits after the step of that number."""

RECIPIENT: Final = tuple(f"migrateThreadHangAtStep{step}" for step in range(1, 8))
"""Likewise the recipient."""

FAIL_POINT_NAMES: Final = frozenset((*DONOR, *RECIPIENT))
