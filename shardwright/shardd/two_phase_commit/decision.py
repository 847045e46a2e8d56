"""What a coordinator decides, and how its document has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bson.timestamp import Timestamp

from shardwright.wire.errors import CommandError

_COMMIT: Final = "commit"
_ABORT: Final = "abort"


@dataclass(frozen=True, slots=True)
class Commit:
    """All participants have prepared, and commit at the same time.

    Attributes:
        timestamp: the highest of their prepare timestamps.
    """

    timestamp: Timestamp

    def to_document(self) -> dict[str, Any]:
        """The field ``decision`` of the coordinator's document."""
        return {"decision": _COMMIT, "commitTimestamp": self.timestamp}


@dataclass(frozen=True, slots=True)
class Abort:
    """A participant cannot commit, or the time is over.

    Attributes:
        code: of the error that the router gets.
        message: its text, which names the participant.
    """

    code: int
    message: str

    def to_document(self) -> dict[str, Any]:
        """The field ``decision`` of the coordinator's document."""
        error = CommandError(self.code, self.message)
        status = {"code": error.code, "codeName": error.code_name, "errmsg": error.message}
        return {"decision": _ABORT, "abortStatus": status}


Decision: TypeAlias = Commit | Abort


def decision_from_document(document: Mapping[str, Any]) -> Decision:
    """The decision in a coordinator's document.

    Raises:
        KeyError: it is of no known form.
    """
    if document["decision"] == _COMMIT:
        return Commit(document["commitTimestamp"])
    status = document["abortStatus"]
    return Abort(status["code"], status["errmsg"])


def name_of(decision: Decision | None) -> str | None:
    """``commit`` or ``abort``; None while nothing is decided."""
    if decision is None:
        return None
    return _COMMIT if isinstance(decision, Commit) else _ABORT
