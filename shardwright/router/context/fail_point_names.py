"""The fail points of routers; their names and meanings are MongoDB's."""

from typing import Final

from shardwright.daemon.fail_command import FAIL_COMMAND

FAIL_GET_MORE: Final = "failGetMoreAfterCursorCheckout"
"""Fails a ``getMore`` that has found its cursor, which ends the cursor."""

HANG_BEFORE_MOVING_DOCUMENT: Final = "hangAfterThrowWouldChangeOwningShardRetryableWrite"
"""Makes a retryable write wait that a shard has refused because a document would leave it, before its transaction."""

FAIL_POINT_NAMES: Final = frozenset({FAIL_COMMAND, FAIL_GET_MORE, HANG_BEFORE_MOVING_DOCUMENT})
