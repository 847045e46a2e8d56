"""The fail points of routers; their names and meanings are MongoDB's."""

from typing import Final

from shardwright.daemon.fail_command import FAIL_COMMAND

FAIL_POINT_NAMES: Final = frozenset({FAIL_COMMAND})
