"""The reply to an ``update`` whose statements were executed one by one."""

from typing import Any, Final

from shardwright.sharding.owner_changes import CHANGED_OWNER
from shardwright.wire.errors import CommandError

_TIMES: Final = ("$clusterTime", "operationTime")


class MergedUpdateReply:
    """Merges the replies to single statements.

    Attributes:
        errors: the entries of ``writeErrors``.
    """

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self._n = 0
        self._modified = 0
        self._upserted: list[dict[str, Any]] = []
        self._retried: list[int] = []
        self._last: dict[str, Any] = {}

    def add(self, position: int, reply: dict[str, Any]) -> None:
        """Add the reply to the statement at a position."""
        self._n += reply.get("n", 0)
        self._modified += reply.get("nModified", 0)
        self._upserted += [{**each, "index": position} for each in reply.get("upserted", ())]
        self._retried += reply.get("retriedStmtIds", ())
        self.errors += [{**each, "index": position} for each in reply.get("writeErrors", ())]
        self._last = reply

    def add_error(self, position: int, error: CommandError) -> None:
        """Add the error of the statement at a position."""
        self.errors.append({"index": position, "code": error.code, "errmsg": error.message, **error.extra})

    @property
    def has_times(self) -> bool:
        """Whether mongod has answered a statement, so that the reply has its ``operationTime``."""
        return "operationTime" in self._last

    def add_times(self, reply: dict[str, Any]) -> None:
        """Copy the times of another reply."""
        self._last |= {field: reply[field] for field in _TIMES if field in reply}

    def document(self) -> dict[str, Any]:
        """The reply in mongod's order of fields."""
        document: dict[str, Any] = {"n": self._n}
        if self.errors:
            document["writeErrors"] = self.errors
        if self._upserted:
            document["upserted"] = self._upserted
        if self._retried:
            document["retriedStmtIds"] = self._retried
        document["nModified"] = self._modified
        for field in ("writeConcernError", "electionId", "opTime", CHANGED_OWNER.decode()):
            if field in self._last:
                document[field] = self._last[field]
        document["ok"] = 1.0
        for field in _TIMES:
            if field in self._last:
                document[field] = self._last[field]
        return document
