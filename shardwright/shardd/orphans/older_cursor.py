"""One cursor that is older than an incoming range: what is done with its batches, and who may read it.

Where this daemon answers in place of mongod, it refuses what mongod refuses.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import trio

from shardwright.shardd.orphans.cursor_kinds import Shown
from shardwright.shardd.orphans.kept_documents import Kept
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.operation_session import AUTOCOMMIT, TXN_NUMBER, check_lsid
from shardwright.sharding.session_cache import NO_USER, SessionId
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import DOUBLE, INT32, INT64, STRING, append, decode_value, encode_elements, index, without
from shardwright.wire.request import Request

if TYPE_CHECKING:
    from shardwright.daemon.user_names import UserName

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
"""Lets mongod open a cursor again although it has become a secondary, on which the first one could be read on."""


@dataclass(slots=True)
class OlderCursor:
    """What is to be done with the batches of a cursor.

    Attributes:
        namespace: the collection.
        session: the session in which it was opened.
        times_out: whether mongod would end it after some minutes without a reader.
        hidden: the ranges to leave out.
        shown: what the cursor's documents show.
        command: the command to open it again with, if it has not begun.
        substitute: the raw id of the cursor that was opened in its place.
        opened: when that was, on trio's clock.
        reading: set when what is left of it has been read; None if that is not being done.
        kept: what is left of it.
        collection_uuid: of the collection, if there is a command or something is kept.
        ended: why it was ended.
        last_used: on trio's clock.
    """

    namespace: str
    session: SessionId | None = None
    times_out: bool = False
    hidden: OwnershipFilter | None = None
    shown: Shown = Shown.NEITHER
    command: bytes | None = None
    substitute: bytes | None = None
    opened: float | None = None
    reading: trio.Event | None = None
    kept: Kept | None = None
    collection_uuid: UUID | None = None
    ended: str | None = None
    last_used: float = field(default_factory=trio.current_time)

    @property
    def is_held_here(self) -> bool:
        """Whether mongod has no such cursor any longer."""
        return self.kept is not None or self.ended is not None

    def check_not_ended(self) -> None:
        """Refuse to read on if it was ended.

        Raises:
            CommandError: QueryPlanKilled.
        """
        if self.ended is not None:
            raise CommandError(
                ErrorCode.QueryPlanKilled,
                f"a range of the collection was received after the cursor was opened, and {self.ended}",
            )

    def check_reader(self, request: Request, user: "UserName | None") -> None:
        """Refuse a ``getMore`` that mongod would refuse.

        Args:
            request: the ``getMore``.
            user: who has logged in on its connection.

        Raises:
            CommandError: Unauthorized or 50736 to 50739, as mongod; BadValue, it has a time limit.
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
        # mongod does not tell whose cursor it is, except by its session.
        if self.is_held_here and self.session is None and user is not None and not user.is_internal:
            raise CommandError(
                ErrorCode.Unauthorized, f"cursor id {cursor_id} was not created by the authenticated user"
            )

    def may_be_killed_by(self, user: "UserName | None") -> bool:
        """Whether a user who has logged in may kill the cursor because it is the user's own."""
        if user is None or user.is_internal:
            return True
        return self.session is not None and self.session.uid == user.digest


def session_of_request(request: Request, user: "UserName | None") -> SessionId | None:
    """The session of a request; None outside a session.

    Args:
        request: the request.
        user: who has logged in on its connection, to whom the session belongs unless the request names its owner.

    Raises:
        CommandError: as for `check_lsid`.
    """
    lsid = request.raw_object(b"lsid")
    if lsid is None:
        return None
    identifier, uid = check_lsid(lsid, index(lsid))
    return SessionId(identifier, uid or (NO_USER if user is None else user.digest))


def is_well_formed(request: Request) -> bool:
    """Whether mongod would accept the arguments of a ``getMore``, so that only the cursor matters; else it says why."""
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
    """The request that opens a cursor like the one that a command has opened."""
    body = append(without(command, (_READ_PREFERENCE,)), _FROM_ANY_MEMBER)
    request = Request(OpMsg(op_msg(body, request_id=next_request_id())))
    # mongod requires them if the client is another mongod.
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
        hidden: the ranges.
        merged: filters with these ranges, by the filters without them.
        commands: the commands of the cursors that have not begun.
        read: the cursors that have returned a batch since they were listed.
        listed: when the listing began, on trio's clock.
        rests_until: until when what is left of cursors is read.
        collection_uuid: of the collection.
    """

    hidden: OwnershipFilter
    merged: dict[OwnershipFilter, OwnershipFilter]
    commands: Mapping[int, bytes]
    read: Set[bytes]
    listed: float
    rests_until: float
    collection_uuid: UUID | None

    def merged_with(self, known: OwnershipFilter | None) -> OwnershipFilter:
        """The filter of a cursor from which some ranges were hidden before; cursors with the same one share it."""
        if known is None:
            return self.hidden
        if known not in self.merged:
            self.merged[known] = known.merged_with(self.hidden)
        return self.merged[known]
