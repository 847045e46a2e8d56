"""``config.locks`` and ``config.lockpings``: who changes which database or collection, and which processes are alive.

In MongoDB 6.0 these are the cluster's distributed locks, a document for each name that was ever locked. Here they are
for people and tools that look; what excludes what is decided elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.objectid import ObjectId

LOCKS: Final = "locks"
PINGS: Final = "lockpings"

_FREE: Final = 0
_HELD: Final = 2

_NO_TERM: Final = -1
"""MongoDB 6.0 gives locks no term any more."""


@dataclass(frozen=True, slots=True)
class LockEntry:
    """A lock of a process, held or released.

    Attributes:
        name: the database or namespace.
        process: a shard's id, or ``config``.
        session: the term in which the process holds it (see `lock_session`).
        when: the time at which it was taken, in UTC without a time zone.
        who: the process and its thread.
        why: the kind of change.
    """

    name: str
    process: str
    session: ObjectId
    when: datetime
    who: str
    why: str

    def to_update(self, *, is_held: bool) -> dict[str, Any]:
        """The statement of an update command that records it; a lock that another process has taken since stays."""
        fields = {
            "state": _HELD if is_held else _FREE,
            "process": self.process,
            "term": _NO_TERM,
            "ts": self.session,
            "when": self.when,
            "who": self.who,
            "why": self.why,
        }
        if is_held:
            return {"q": {"_id": self.name}, "u": {"$set": fields}, "upsert": True}
        is_taken = {"$and": [{"$eq": ["$state", _HELD]}, {"$ne": ["$process", self.process]}]}
        released = {"$literal": {"_id": self.name, **fields}}
        return {
            "q": {"_id": self.name},
            "u": [{"$replaceWith": {"$cond": [is_taken, "$$ROOT", released]}}],
            "upsert": True,
        }


def lock_session(term: int) -> ObjectId:
    """The value of ``ts`` for all locks that a process holds in one term."""
    return ObjectId(term.to_bytes(8, "little") + bytes(4))


def release_all(process: str) -> Mapping[str, Any]:
    """The statement of an update command that releases what an earlier primary of the process held."""
    return {"q": {"process": process, "state": _HELD}, "u": {"$set": {"state": _FREE}}, "multi": True}


def ping(process: str, now: datetime) -> Mapping[str, Any]:
    """The statement of an update command that says that a process is alive."""
    return {"q": {"_id": process}, "u": {"$set": {"ping": now}}, "upsert": True}
