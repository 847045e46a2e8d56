"""Checkpoint documents, and how far two of them agree. Pure.

Both ends have a document with the same ``_id``. Every recorded checkpoint has a new session id, written to both ends.
So a session that both ends know proves that neither was restored to an earlier moment since, or used with another
partner. The rule is CouchDB's: equal sessions resume; otherwise the newest session that both histories know; otherwise
nothing is known to agree, and the documents are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.timestamp import Timestamp

HISTORY_MAX: Final = 50
HISTORY_DENSE: Final = 25
"""So many of the newest sessions are all kept; of older ones the last of each process, so that history reaches far."""

COUNTERS: Final = (
    "documents_checked",
    "documents_missing",
    "documents_read",
    "documents_written",
    "write_failures",
)

NO_TIME: Final = Timestamp(0, 0)


@dataclass(frozen=True)
class Session:
    """An entry of the history: what was done up to one recorded checkpoint.

    Attributes:
        session_id: of the checkpoint.
        start_time: when the process began, in seconds since 1970.
        end_time: when the checkpoint was recorded.
        start_last: the cluster time of the newest applied change when the process began.
        end_last: the same when the checkpoint was recorded.
        copied: whether the copy was complete.
        counters: see `COUNTERS`.
    """

    session_id: str
    start_time: float
    end_time: float
    start_last: Timestamp
    end_last: Timestamp
    copied: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The entry as it is stored."""
        counted = {name: self.counters.get(name, 0) for name in COUNTERS}
        return {
            "session_id": self.session_id,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "start_last": self.start_last,
            "end_last": self.end_last,
            "copied": self.copied,
            **counted,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Session":
        """The entry that was stored."""
        return cls(
            document["session_id"],
            document["start_time"],
            document["end_time"],
            document["start_last"],
            document["end_last"],
            document["copied"],
            {name: document.get(name, 0) for name in COUNTERS},
        )


@dataclass(frozen=True)
class Checkpoint:
    """A recorded checkpoint of one end.

    Attributes:
        history: the sessions, newest first, at most `HISTORY_MAX`; the first one is the checkpoint's own.
    """

    history: tuple[Session, ...]

    @property
    def session_id(self) -> str:
        """The session of this checkpoint."""
        return self.history[0].session_id

    @property
    def last(self) -> Timestamp:
        """The cluster time of the newest change of the source that is applied."""
        return self.history[0].end_last

    def document(self) -> dict[str, Any]:
        """The fields as they are stored, without ``_id``."""
        return {
            "session_id": self.session_id,
            "source_last_time": self.last,
            "history": [each.document() for each in self.history],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "Checkpoint | None":
        """The checkpoint that was stored; None if there is none, or a document without one."""
        if document is None or not document.get("history"):
            return None
        return cls(tuple(Session.from_document(each) for each in document["history"]))


def recorded(earlier: Checkpoint | None, session: Session) -> Checkpoint:
    """The checkpoint after another one."""
    history = (session,) if earlier is None else (session, *earlier.history)
    if len(history) <= HISTORY_MAX:
        return Checkpoint(history)
    dense, processes = list(history[:HISTORY_DENSE]), {each.start_time for each in history[:HISTORY_DENSE]}
    for each in history[HISTORY_DENSE:]:
        if each.start_time not in processes:
            processes.add(each.start_time)
            dense.append(each)
    return Checkpoint(tuple(dense[:HISTORY_MAX]))


def is_change(earlier: Checkpoint | None, session: Session) -> bool:
    """Whether a checkpoint has to be recorded: not if nothing was done since the last one.

    Time passes on an idle source too, not least by the checkpoints that are recorded there.
    """
    if earlier is None:
        return True
    last = earlier.history[0]
    if last.start_time != session.start_time:
        return last.copied != session.copied or any(session.counters.values())
    return _done(last) != _done(session)


def _done(session: Session) -> tuple[object, ...]:
    return session.copied, *(session.counters.get(name, 0) for name in COUNTERS)


@dataclass(frozen=True)
class Agreement:
    """How a replication begins.

    Attributes:
        last: the newest cluster time of the source at which both ends agree; None if nothing is known.
        is_exact: whether the target's own position, which is newer than its last recorded checkpoint, is valid. If not,
            one end may have changes that the other never had, so the documents are compared as well.
        copied: whether the copy was complete then.
        reason: for the log.
    """

    last: Timestamp | None
    is_exact: bool
    copied: bool
    reason: str


def agreement(source: Checkpoint | None, target: Checkpoint | None) -> Agreement:
    """How far the checkpoints of two ends agree.

    The target's position is stored in the transactions that write its documents. So it is valid unless the source has
    lost the target's session: then the source was restored to an earlier moment, or is another deployment.
    """
    if source is None or target is None:
        where = "either side" if source is target else "the source" if source is None else "the target"
        return Agreement(None, False, False, f"no checkpoint at {where}")
    known = {each.session_id for each in source.history}
    for number, each in enumerate(target.history):
        if each.session_id in known:
            if number == 0:
                return Agreement(each.end_last, True, each.copied, "the source has the session of the target")
            return Agreement(each.end_last, False, each.copied, "an earlier session is common")
    return Agreement(None, False, False, "no common session")
