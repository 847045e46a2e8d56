"""Errors of the oldest commands of mongos, which have a message and no code."""

from typing import Any

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class PlainError(CommandError):
    """An error whose reply is ``{ok: 0, errmsg}`` alone, as these commands answer wrong arguments."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UnknownError, message)

    def reply(self) -> dict[str, Any]:
        """The body of the reply."""
        return {"ok": 0.0, "errmsg": self.message}
