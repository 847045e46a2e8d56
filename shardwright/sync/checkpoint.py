"""Checkpoint documents, and the comparison of two of them. Pure.

Both ends store a document with the same ``_id``. Each recorded checkpoint has a new session id, which is written to
both ends. A session found at both ends proves that neither end has since been restored to an earlier moment or used
with another partner.

The rule is CouchDB's. Equal sessions resume. Otherwise the newest session in both histories counts. Otherwise no
agreement is known, and the documents are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.timestamp import Timestamp

HISTORY_MAX: Final = 50
HISTORY_DENSE: Final = 25
"""Number of newest sessions that are all kept.

Of older sessions only the last one of each process is kept, so that the history reaches far back.
"""

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
    """An entry of the history: the work up to one recorded checkpoint.

    Attributes:
        start_time: start of the process, in seconds since 1970.
        end_time: time of the checkpoint, in seconds since 1970.
        start_last: cluster time of the newest applied change at the start of the process.
        end_last: cluster time of the newest applied change at the checkpoint.
    """

    session_id: str
    start_time: float
    end_time: float
    start_last: Timestamp
    end_last: Timestamp
    copied: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the entry as a document."""
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
        """Restore an entry from its document."""
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
        """The cluster time of the newest applied change of the source."""
        return self.history[0].end_last

    def document(self) -> dict[str, Any]:
        """Return the stored fields, without ``_id``."""
        return {
            "session_id": self.session_id,
            "source_last_time": self.last,
            "history": [each.document() for each in self.history],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "Checkpoint | None":
        """Restore a checkpoint from its document; None if there is no document or no checkpoint in it."""
        if document is None or not document.get("history"):
            return None
        return cls(tuple(Session.from_document(each) for each in document["history"]))


def recorded(earlier: Checkpoint | None, session: Session) -> Checkpoint:
    """Return the checkpoint that follows another one."""
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
    """Whether anything was done since the last checkpoint, so that a new one must be recorded.

    Passing time does not count: it passes on an idle source too, not least through the checkpoints recorded there.
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
    """The starting point of a replication.

    Attributes:
        last: the newest cluster time of the source at which both ends agree; None if there is no known agreement.
        is_exact: whether the target's own position is valid, which is newer than its last recorded checkpoint. If not,
            one end may have changes that the other never had, so the documents are compared as well.
    """

    last: Timestamp | None
    is_exact: bool
    copied: bool
    reason: str


def agreement(source: Checkpoint | None, target: Checkpoint | None) -> Agreement:
    """Find the newest agreement between the checkpoints of two ends.

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
