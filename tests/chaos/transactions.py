"""Transactions run by raw commands as drivers run them, so that a client has exactly a driver's knowledge of each."""

import time
from typing import Any, Final

from bson.int64 import Int64

from tests.chaos.checkers.append_history import Outcome
from tests.chaos.stage import UNAVAILABLE_SECONDS_MAX, Document, StageClient, is_done
from tests.migration.retrying import RETRY_PAUSE_SECONDS, RETRYABLE_CODES

TRANSIENT: Final = "TransientTransactionError"

_UNLABELLED: Final = frozenset({50, 133, 11000})
"""Errors without a label that are expected: a lack of time, and two upserts of one document."""

_COMMIT_UNKNOWN: Final = RETRYABLE_CODES | {50, 64}
"""Errors of a commit after which drivers send it again."""


class TransactionAbortedError(Exception):
    """A statement failed. The transaction was aborted, and will never be committed."""


class ClientTransaction:
    """One transaction of a client, pinned to one router until the result of its commit is unknown.

    Attributes:
        level: its read concern.
    """

    def __init__(self, client: StageClient, level: str, session: object = "transactions") -> None:
        self.level = level
        self._client = client
        self._router = client.some_router()
        numbered = client.session(session)
        self._fields: Document = {
            "lsid": {"id": numbered.id},
            "txnNumber": Int64(numbered.next_number()),
            "autocommit": False,
        }
        self._recovery_token: Document | None = None
        self._is_begun = False

    def run(self, command: Document) -> Document:
        """Run a statement; returns the reply, which is one without errors.

        Raises:
            TransactionAbortedError: there was another one, or none.
            AssertionError: the error is none that a driver could handle.
        """
        body = {**command, **self._fields}
        if not self._is_begun:
            body |= {"startTransaction": True, "readConcern": {"level": self.level}}
            self._is_begun = True
        reply = self._client.once(body, router=self._router)
        if is_done(reply):
            assert reply is not None
            self._recovery_token = reply.get("recoveryToken", self._recovery_token)
            return reply
        self.abort()
        _check_refusal(command, reply)
        raise TransactionAbortedError(f"{reply}")

    def read_all(self, command: Document, batch_size: int) -> list[Document]:
        """All documents of a find or aggregate; errors as `run`."""
        if "aggregate" in command:
            command = {**command, "cursor": {"batchSize": batch_size}}
        else:
            command = {**command, "batchSize": batch_size}
        collection = next(iter(command.values()))
        cursor = self.run(command)["cursor"]
        found: list[Document] = cursor["firstBatch"]
        while cursor["id"]:
            more = {"getMore": cursor["id"], "collection": collection, "batchSize": batch_size}
            cursor = self.run(more)["cursor"]
            found += cursor["nextBatch"]
        return found

    def abort(self) -> None:
        """Abort it, or at least try to."""
        self._client.once({"abortTransaction": 1, **self._end_fields()}, router=self._router, database="admin")

    def commit(self, *, is_patient: bool = True) -> Outcome:
        """Commit it, through one router after another if its result is unknown.

        Args:
            is_patient: whether to repeat it until the result is known, within the time that any fault lasts.

        Raises:
            AssertionError: the reply is impossible, or the result remains unknown.
        """
        deadline = time.monotonic() + UNAVAILABLE_SECONDS_MAX
        body = {"commitTransaction": 1, **self._end_fields()}
        while True:
            reply = self._client.once(body, router=self._router, database="admin")
            outcome = outcome_of_commit(reply)
            if outcome is not Outcome.UNKNOWN or not is_patient:
                return outcome
            assert time.monotonic() < deadline, f"the result of {body} is still unknown: {reply}"
            self._router = self._client.some_router()
            time.sleep(RETRY_PAUSE_SECONDS)

    def _end_fields(self) -> dict[str, Any]:
        # An empty one is sent too: it says that there was nothing but reads, so that the outcome is known.
        token = {} if self._recovery_token is None else {"recoveryToken": self._recovery_token}
        return {**self._fields, **token, "writeConcern": {"w": "majority"}}


def outcome_of_commit(reply: Document | None) -> Outcome:
    """Return the outcome that the reply to a commit reports.

    Raises:
        AssertionError: it is an error that neither reports an abort nor may be retried.
    """
    if reply is None or reply.keys() & {"writeConcernError"}:
        return Outcome.UNKNOWN
    if reply.get("ok") == 1:
        return Outcome.COMMITTED
    if TRANSIENT in reply.get("errorLabels", ()):
        return Outcome.ABORTED
    assert reply.get("code") in _COMMIT_UNKNOWN, f"a commit was answered {reply}"
    return Outcome.UNKNOWN


def _check_refusal(command: Document, reply: Document | None) -> None:
    """Whether an application would try again after an error, as after all that faults may cause."""
    if reply is None or reply.get("ok") == 1:
        return
    is_expected = TRANSIENT in reply.get("errorLabels", ()) or reply.get("code") in _UNLABELLED
    assert is_expected, f"{command} in a transaction was answered {reply}"
