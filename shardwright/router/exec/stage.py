"""The stage, the part that every read of the router is made of.

Stages form a tree, like mongos's ``RouterExecStage`` and the primitives of Vitess. The leaves read cursors on shards,
and the other stages read the stages below them. The root answers a client through a `cursors.open_cursor.Cursor`, or
the router itself reads it, as the input of another aggregation or of writes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from bson.timestamp import Timestamp

from shardwright.wire.request import Request
from shardwright.wire.request_validation import API_PARAMETERS

if TYPE_CHECKING:
    from shardwright.router.exec.remote import RemoteCursor
    from shardwright.wire.transport.client_connection import ClientConnection

IN_SESSION: Final = (b"lsid", b"txnNumber", b"autocommit", b"comment")
"""Fields of a `GetMore` that are copied to a shard's ``getMore`` if the cursor has none of the `API_PARAMETERS`."""

AS_CLIENT: Final = (*IN_SESSION, *API_PARAMETERS)
"""Fields that are copied if the cursor was opened with all fields of the client."""

RELAYED: Final = b""
"""Stands for a reply that the client has already received."""


@dataclass(slots=True)
class Relayed:
    """The size of a reply that was relayed, for statistics; 0 before that.

    Attributes:
        documents: the number of documents in its batch; 0 if it could not be determined.
    """

    frame_bytes: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class GetMore:
    """A request for the next documents: a ``getMore``, or the command that opens the cursor.

    Attributes:
        request: has the session and other fields for the ``getMore`` commands to shards.
        client: the connection that sent it, whose reservation of memory is adjusted. None if the router itself reads;
            then the task's client has the reservation.
        cursor_id: the router's id for the cursor, returned while the cursor is not exhausted; 0 before it has one.
        batch_size: the maximum number of documents, None for as many as fit.
        max_time_ms: how long an awaiting cursor may wait, None if not given.
        relayed: receives the size of the reply if it is relayed.
    """

    request: Request
    client: "ClientConnection | None"
    cursor_id: int = 0
    batch_size: int | None = None
    max_time_ms: int | None = None
    relayed: Relayed = field(default_factory=Relayed, compare=False)


class Stage:
    """One stage of a read. Class attributes and properties have the defaults of most stages.

    Attributes:
        awaits_data: whether ``maxTimeMS`` in a ``getMore`` is allowed, as the time to wait for documents.
        at_cluster_time: the common read time of all shards, if one was chosen.
        is_partial: whether an unreachable shard has been left out.
        operation_time: the packed time of the data, 0 if unknown.
        resume_token: the raw ``postBatchResumeToken`` of a change stream; None for other reads.
        reply_elements: raw elements of the reply after the cursor, such as ``writeConcernError``.
    """

    __slots__ = ()

    awaits_data = False
    at_cluster_time: Timestamp | None = None
    is_partial = False
    operation_time = 0
    resume_token: bytes | None = None
    reply_elements = b""

    @property
    def remotes(self) -> "Sequence[RemoteCursor]":
        """The cursors on shards that this stage and the stages below it read, including exhausted ones."""
        return ()

    @property
    def is_exhausted(self) -> bool:
        """Whether all documents have been returned. A stage that detects the end late returns an empty batch first."""
        return False

    @property
    def held_bytes(self) -> int:
        """Memory used by documents that this stage, and the stages below it, have read and not returned yet."""
        return 0

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """Return the next documents; an empty list at the end, or if an awaiting stage has none in time.

        The root returns at most ``get_more.batch_size`` documents. Stages below it return any number.

        Raises:
            CommandError: the documents could not be read. The stage is then unusable, unless the error is about the
                arguments of the ``getMore``.
        """
        raise NotImplementedError

    async def answer(self, get_more: GetMore) -> list[bytes] | bytes:
        """Return the documents for a client's ``getMore``, or a shard's whole reply; `RELAYED` if the client has it."""
        return await self.next_batch(get_more)


def remotes_of(*stages: Stage | None) -> "tuple[RemoteCursor, ...]":
    """Return the cursors on shards of several stages."""
    return tuple(chain.from_iterable(stage.remotes for stage in stages if stage is not None))


def held_by(*stages: Stage | None) -> int:
    """Return the memory that several stages hold, see `Stage.held_bytes`."""
    return sum(stage.held_bytes for stage in stages if stage is not None)


class ListStage(Stage):
    """Documents in memory, returned at once."""

    __slots__ = ("_documents", "at_cluster_time", "operation_time", "reply_elements")

    def __init__(
        self,
        documents: Iterable[bytes] = (),
        *,
        reply_elements: bytes = b"",
        at_cluster_time: Timestamp | None = None,
        operation_time: int = 0,
    ) -> None:
        self._documents = list(documents)
        self.reply_elements = reply_elements
        self.at_cluster_time = at_cluster_time
        self.operation_time = operation_time

    @property
    def is_exhausted(self) -> bool:
        """See `Stage`."""
        return not self._documents

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        documents, self._documents = self._documents, []
        return documents


class MissingStage(ListStage):
    """The result of a read of a missing collection. mongos replies to it with another order of fields."""

    __slots__ = ()
