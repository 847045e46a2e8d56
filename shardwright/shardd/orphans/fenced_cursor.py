"""A cursor fenced off from an incoming range: its permitted readers, and the removal of hidden documents.

Where this daemon answers in place of mongod, it refuses the same requests as mongod. Hidden documents are found by the
shard key in their raw bytes, or by their ``_id``, which allows a lookup of the key. `Kept` holds the rest of a cursor
whose documents show neither.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.cursor_kinds import Shown
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.logical_sessions import NO_USER, SessionId
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, TXN_NUMBER, check_lsid
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import DOUBLE, INT32, INT64, STRING, append, decode_value, encode_elements, index, without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

if TYPE_CHECKING:
    from shardwright.daemon.users import UserName


POLL_SECONDS: Final = 0.05

_INT64: Final = Struct("<q")

VisibleOf = Callable[[list[bytes]], Awaitable[list[bytes]]]
"""Removes hidden documents from a batch."""


@dataclass(slots=True)
class Kept:
    """The rest of a cursor's documents, kept by this daemon for its client.

    Attributes:
        reply: the body of a reply without documents, as a template for others.
        size: the length of the documents in bytes.
    """

    reply: bytes = b""
    documents: deque[bytes] = field(default_factory=deque)
    size: int = 0

    async def read_all(self, cursor: RawCursor, visible_of: VisibleOf, bytes_max: int) -> bool:
        """Read a cursor to its end; False if the rest exceeds the limit, and the cursor is closed.

        CursorInUse after the first batch is retried, because the batches already read cannot be returned to mongod.

        Raises:
            CommandError: CursorInUse, CursorNotFound and others from mongod; the first two only before the first batch.
            BackendError: mongod does not answer.
        """
        try:
            batch = await cursor.next_batch()
        except CommandError as error:
            if error.code not in (ErrorCode.CursorInUse, ErrorCode.CursorNotFound):
                await cursor.close()
            raise
        try:
            while True:
                found = await visible_of(batch.documents())
                self.documents += found
                self.size += sum(map(len, found))
                if cursor.is_exhausted:
                    self.reply = _without_batch(response_body(batch.frame))
                    return True
                if self.size > bytes_max:
                    return False
                batch = await _next_when_unused(cursor)
        finally:
            await cursor.close()

    def answer(self, cursor_id: bytes, request: Request) -> bytes:
        """Build the reply to a ``getMore`` with the next batch; the cursor id is 0 with the last one."""
        batch = self._take(request.get(b"batchSize") or 0)
        cursor = rawbson.find(self.reply, b"cursor")
        assert cursor is not None
        value = self.reply[cursor[2] : cursor[3]]
        fields = rawbson.index(value)
        if self.documents:
            at = fields[b"id"][2]
            value = b"".join((value[:at], cursor_id, value[at + len(cursor_id) :]))
        value = rawbson.with_value(value, fields[b"nextBatch"], rawbson.array_of_documents(batch))
        body = rawbson.with_value(self.reply, cursor, value)
        return op_msg(body, request_id=next_request_id(), response_to=request.message.request_id)

    def _take(self, batch_size: int) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        while self.documents and (not batch_size or len(taken) < batch_size):
            size += len(self.documents[0])
            if taken and size > BSON_OBJECT_BYTES_MAX:
                break
            taken.append(self.documents.popleft())
        self.size -= sum(map(len, taken))
        return taken


async def _next_when_unused(cursor: RawCursor) -> RawBatch:
    """Read the next batch; wait while a client is reading the cursor directly from mongod."""
    while True:
        try:
            return await cursor.next_batch()
        except CommandError as error:
            if error.code != ErrorCode.CursorInUse:
                raise
        await trio.sleep(POLL_SECONDS)


def _without_batch(body: bytes) -> bytes:
    """Remove the documents from the body of a reply to ``getMore``."""
    cursor = rawbson.find(body, b"cursor")
    assert cursor is not None
    value = body[cursor[2] : cursor[3]]
    batch = rawbson.index(value)[b"nextBatch"]
    return rawbson.with_value(body, cursor, rawbson.with_value(value, batch, rawbson.array_of_documents([])))


_IDS_MAX: Final = 10_000
_ID_BYTES_MAX: Final = 8 << 20
"""Limits for the ids in one lookup."""


async def visible_documents(
    mongod: LocalMongod, namespace: str, hidden: OwnershipFilter, shown: Shown, documents: list[bytes]
) -> list[bytes]:
    """Return the documents of a batch that are outside of the hidden ranges.

    A document that is not found has been deleted. It may have been hidden before, so it is left out.

    Args:
        shown: whether the documents show the shard key or the ``_id``.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    if shown is Shown.KEY:
        return [document for document in documents if not hidden.covers(document)]
    ids = [_id_in(each) for each in documents]
    wanted = sorted({each for each in ids if each is not None})
    found: set[bytes] = set()
    for some in _in_groups(wanted):
        found |= await _visible_ids(mongod, Namespace.parse(namespace), hidden, some)
    return [document for document, each in zip(documents, ids, strict=True) if each in found]


async def _visible_ids(
    mongod: LocalMongod, namespace: Namespace, hidden: OwnershipFilter, ids: list[bytes]
) -> set[bytes]:
    """Return the ids, each as type and value, of documents outside of the hidden ranges.

    The ranges are compared here, because mongod would have to parse all of them for each batch. mongod compares ids by
    the collection's collation, so that it can use the index. Here the bytes must be equal.
    """
    elements = [rawbson.element(b"%d" % at, each[0], each[1:]) for at, each in enumerate(ids)]
    among = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(elements)), b"$in")
    names = [each.name.decode() for each in hidden.pattern.fields]
    search: dict[str, Any] = {
        "find": namespace.collection,
        "filter": rawbson.raw_document(rawbson.wrap_value(rawbson.OBJECT, among, b"_id")),
        "projection": {"_id": 1} | {name: 1 for name in names if name.partition(".")[0] != "_id"},
        "batchSize": len(ids) + 1,
        "$readPreference": {"mode": "nearest"},
    }
    cursor = RawCursor(mongod.pool.exchange, namespace.db, search)
    visible = (each for each in await cursor.all_documents() if not hidden.covers(each))
    return {found for document in visible if (found := _id_in(document)) is not None}


def _in_groups(ids: list[bytes]) -> Iterator[list[bytes]]:
    """Group ids so that each group fits into one command."""
    group: list[bytes] = []
    size = 0
    for each in ids:
        if group and (len(group) == _IDS_MAX or size + len(each) > _ID_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(each)
        size += len(each)
    if group:
        yield group


def _id_in(document: bytes) -> bytes | None:
    """Return the type and value of a document's ``_id``."""
    span = rawbson.find(document, b"_id")
    return None if span is None else bytes((span[0],)) + document[span[2] : span[3]]


_WHOLE_NUMBERS: Final = (INT32, INT64, DOUBLE)
_OUTSIDE_SESSION: Final = 50736
_WITHOUT_SESSION: Final = 50737
_IN_OTHER_SESSION: Final = 50738
_IN_TRANSACTION: Final = 50739

_CONCERNS: Final[Mapping[bytes, bytes]] = {
    b"readConcern": encode_elements({"readConcern": {}}),
    b"writeConcern": encode_elements({"writeConcern": {"w": 1}}),
}
_READ_PREFERENCE: Final = b"$readPreference"
_FROM_ANY_MEMBER: Final = encode_elements({"$readPreference": {"mode": "nearest"}})
"""Allows mongod to open a cursor again after it has become a secondary, on which the first cursor remained readable."""


@dataclass(slots=True)
class FencedCursor:
    """A cursor with ranges to hide from it.

    Attributes:
        collection_uuid: the collection's UUID when a range was first hidden; None if it did not exist on the shard.
        session: the session in which it was opened.
        times_out: whether mongod would end it after some idle minutes.
        shown: the shard key information in its documents.
        command: the raw command to open it again, if it has not begun.
        substitute: the raw id of the cursor opened in its place.
        opened: time of opening the substitute, on trio's clock.
        reading: set when the rest has been read; None while it is not being read.
        last_used: on trio's clock.
    """

    namespace: str
    collection_uuid: UUID | None = None
    session: SessionId | None = None
    times_out: bool = False
    hidden: OwnershipFilter | None = None
    shown: Shown = Shown.NEITHER
    command: bytes | None = None
    substitute: bytes | None = None
    opened: float | None = None
    reading: trio.Event | None = None
    kept: Kept | None = None
    ended: str | None = None
    last_used: float = field(default_factory=trio.current_time)

    @property
    def is_held_here(self) -> bool:
        """Whether mongod no longer has the cursor."""
        return self.kept is not None or self.ended is not None

    def check_not_ended(self) -> None:
        """Refuse further reads of an ended cursor (QueryPlanKilled)."""
        if self.ended is not None:
            raise CommandError(
                ErrorCode.QueryPlanKilled,
                f"a range of the collection was received after the cursor was opened, and {self.ended}",
            )

    def check_reader(self, request: Request, user: "UserName | None") -> None:
        """Refuse a ``getMore`` that mongod would refuse.

        Args:
            user: the authenticated user of its connection.

        Raises:
            CommandError: Unauthorized or 50736 to 50739, as mongod; BadValue for a time limit.
        """
        if not is_well_formed(request):
            return
        reader = session_of_request(request, user)
        cursor_id = request.get(b"getMore")
        if reader != self.session:
            if self.session is not None and user is not None and not user.is_internal:
                raise CommandError(
                    ErrorCode.Unauthorized,
                    f"Cursor session id ({self.session}) is not the same as the operation context's session id "
                    f"({'none' if reader is None else reader})",
                )
            prefix = f"Cannot run getMore on cursor {cursor_id}, which was"
            if self.session is None:
                raise CommandError(_OUTSIDE_SESSION, f"{prefix} not created in a session, in session {reader}")
            if reader is None:
                raise CommandError(_WITHOUT_SESSION, f"{prefix} created in session {self.session}, without an lsid")
            raise CommandError(_IN_OTHER_SESSION, f"{prefix} created in session {self.session}, in session {reader}")
        if AUTOCOMMIT in request.fields:
            number = request.get(TXN_NUMBER)
            prefix = f"Cannot run getMore on cursor {cursor_id}, which was"
            raise CommandError(_IN_TRANSACTION, f"{prefix} not created in a transaction, in transaction {number}")
        namespace = f"{request.db}.{request.get(b'collection')}"
        if namespace != self.namespace:
            raise CommandError(
                ErrorCode.Unauthorized,
                f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace "
                f"{self.namespace}",
            )
        if b"maxTimeMS" in request.fields:
            raise CommandError(ErrorCode.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
        # mongod reports a cursor's user only through its session.
        if self.is_held_here and self.session is None and user is not None and not user.is_internal:
            raise CommandError(
                ErrorCode.Unauthorized, f"cursor id {cursor_id} was not created by the authenticated user"
            )

    def may_be_killed_by(self, user: "UserName | None") -> bool:
        """Whether a user may kill the cursor as its owner."""
        if user is None or user.is_internal:
            return True
        return self.session is not None and self.session.uid == user.digest


def cursor_number(cursor_id: bytes) -> int:
    """Return the number of a raw cursor id."""
    (number,) = _INT64.unpack(cursor_id)
    return int(number)


def session_of_request(request: Request, user: "UserName | None") -> SessionId | None:
    """Return the session of a request; None outside a session. Errors as for `check_lsid`.

    Args:
        user: the authenticated user of its connection, the default owner of the session.
    """
    lsid = request.raw_object(b"lsid")
    if lsid is None:
        return None
    identifier, uid = check_lsid(lsid, index(lsid))
    return SessionId(identifier, uid or (NO_USER if user is None else user.digest))


def is_well_formed(request: Request) -> bool:
    """Whether a ``getMore`` has valid arguments; mongod answers an invalid one."""
    fields = request.fields
    collection, size = fields.get(b"collection"), fields.get(b"batchSize")
    if collection is None or collection[0] != STRING:
        return False
    try:
        session_of_request(request, None)
    except CommandError:
        return False
    return size is None or (size[0] in _WHOLE_NUMBERS and decode_value(request.body, size) >= 0)


def request_to_open_again(command: bytes) -> Request:
    """Build the request that opens a cursor again from its raw command."""
    body = append(without(command, (_READ_PREFERENCE,)), _FROM_ANY_MEMBER)
    request = Request(OpMsg(op_msg(body, request_id=next_request_id())))
    # mongod requires both concerns if the client is another mongod.
    for name, concern in _CONCERNS.items():
        if name not in request.fields and (name == b"readConcern" or request.name == "aggregate"):
            request = request.with_body(append(request.body, concern))
    return request


class HidingResult(Enum):
    """The outcome of an attempt to hide ranges from a cursor."""

    HIDDEN = "it does not return their documents"
    IN_USE = "a batch is being read from it"
    NOT_LISTED = "another one has just been opened in its place"


class Hiding(NamedTuple):
    """One attempt to hide ranges from all cursors on a collection.

    Attributes:
        merged: filters with these ranges, by the filters without them.
        commands: the commands of the cursors that have not begun.
        read: the cursors that have returned a batch since they were listed.
        listed: time at which the listing began, on trio's clock.
        rests_until: the deadline for reading the rests of cursors.
    """

    hidden: OwnershipFilter
    merged: dict[OwnershipFilter, OwnershipFilter]
    commands: Mapping[int, bytes]
    read: Set[bytes]
    listed: float
    rests_until: float
    collection_uuid: UUID | None

    def merged_with(self, known: OwnershipFilter | None) -> OwnershipFilter:
        """Merge the ranges into a cursor's filter; cursors with equal filters share the result."""
        if known is None:
            return self.hidden
        if known not in self.merged:
            self.merged[known] = known.merged_with(self.hidden)
        return self.merged[known]
