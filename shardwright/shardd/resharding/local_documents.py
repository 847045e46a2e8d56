"""Persisted state of a resharding operation on a shard, from which the next primary resumes, and state times."""

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.sharding.resharding.participation import Participation
from shardwright.sharding.resharding.states import DonorState, RecipientState
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

DONOR: Final = "localReshardingOperations.donor"
RECIPIENT: Final = "localReshardingOperations.recipient"
PROGRESS: Final = "localReshardingOperations.recipient.progress_applier"


@dataclass(frozen=True, slots=True)
class LocalOperation:
    """A document with the operation, and this shard's state as donor or recipient.

    Attributes:
        is_holding: whether reads and writes are blocked until the coordinator has decided.
        hidden_indexes: the names of indexes to hide once a recipient's collection has been renamed into place.
    """

    participation: Participation
    state: DonorState | RecipientState
    is_holding: bool = False
    error: CommandError | None = None
    hidden_indexes: tuple[str, ...] = ()

    @property
    def blocks_operations(self) -> bool:
        """Whether operations must wait for the decision."""
        return self.is_holding or self.state is DonorState.BLOCKING_WRITES

    def to_document(self) -> dict[str, Any]:
        """Return the document; the state is in ``mutableState``, as in MongoDB."""
        mutable: dict[str, Any] = {"state": str(self.state)}
        if self.is_holding:
            mutable["isHolding"] = True
        if self.error is not None:
            error = self.error
            mutable["abortReason"] = {"code": error.code, "codeName": error.code_name, "errmsg": error.message}
        if self.hidden_indexes:
            mutable["hiddenIndexes"] = list(self.hidden_indexes)
        return {**self.participation.to_document(), "mutableState": mutable}


class LocalOperations:
    """The documents of all donors, or of all recipients, on this shard.

    All methods raise CommandError if mongod refuses, and BackendError if it does not answer.

    Args:
        name: `DONOR` or `RECIPIENT`.
    """

    def __init__(self, mongod: LocalMongod, name: str) -> None:
        self._documents = ConfigCollection(mongod, name)
        self._states = DonorState if name == DONOR else RecipientState

    async def all(self) -> list[LocalOperation]:
        """Return the operations that the former primary left."""
        return [self._parse(each) for each in await self._documents.all()]

    async def save(self, operation: LocalOperation) -> None:
        """Insert or replace a document."""
        await self._documents.save(operation.to_document())

    async def remove(self, operation_id: UUID) -> None:
        """Remove a document, if it exists."""
        await self._documents.remove(Binary.from_uuid(operation_id))

    def _parse(self, document: dict[str, Any]) -> LocalOperation:
        mutable = document["mutableState"]
        reason = mutable.get("abortReason")
        error = None if reason is None else CommandError(int(reason["code"]), str(reason["errmsg"]))
        state = self._states(mutable["state"])
        participation = Participation.from_document(document)
        hidden = tuple(mutable.get("hiddenIndexes", ()))
        return LocalOperation(participation, state, bool(mutable.get("isHolding")), error, hidden)


class LocalPart:
    """The donor or recipient of one operation, with its persisted state."""

    def __init__(self, documents: LocalOperations, operation: LocalOperation) -> None:
        self._documents = documents
        self._changing = trio.Lock()
        self._is_removed = False
        self.operation = operation

    @property
    def participation(self) -> Participation:
        """The operation."""
        return self.operation.participation

    async def save(self, **changes: Any) -> None:  # noqa: ANN401 - fields of all kinds
        """Change fields of the document.

        Raises:
            CommandError: NoSuchReshardCollection, the operation is over and its document removed; mongod refuses.
            BackendError: mongod does not answer.
        """
        async with self._changing:
            if self._is_removed:
                raise no_operation(self.participation.id)
            changed = replace(self.operation, **changes)
            await self._documents.save(changed)
            self.operation = changed

    async def remove(self) -> None:
        """Remove the document for good; errors as for `LocalOperations`."""
        self._is_removed = True
        async with self._changing:
            await self._documents.remove(self.participation.id)


def no_operation(operation_id: UUID) -> CommandError:
    """Return the error for an operation in which this shard does not take part, or no longer does."""
    return CommandError(ErrorCode.NoSuchReshardCollection, f"No resharding operation {operation_id} is in progress")


class StateTimes:
    """The times at which states were entered.

    Attributes:
        began: the time of entering the first state, by trio's clock.
        present: the time of entering the present state.
    """

    def __init__(self, state: str) -> None:
        self.began = self.present = trio.current_time()
        self._state = state
        self._seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds in all states together."""
        return trio.current_time() - self.began

    def enter(self, state: str) -> None:
        """Enter a state."""
        now = trio.current_time()
        self._seconds[self._state] = self._seconds.get(self._state, 0.0) + now - self.present
        self._state, self.present = state, now

    def seconds_in(self, state: str) -> Int64:
        """Return the whole seconds spent in a state so far."""
        seconds = self._seconds.get(state, 0.0)
        if state == self._state:
            seconds += trio.current_time() - self.present
        return Int64(seconds)
