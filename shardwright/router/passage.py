"""A router's passages for one layout of frames each: the places of the deciding values, and the frames for shards."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from shardwright.router.access.authorized_user import FrameAdmission
from shardwright.router.cursors.open_cursor import OpenCursor
from shardwright.router.operations.operation import PassedOn
from shardwright.router.reads.find_arguments import REWRITTEN
from shardwright.sharding.clock import VectorClock, with_cluster_time
from shardwright.sharding.passage_fields import SESSION_BYTES, SESSION_ID_AT, CommonFields, KeyInQuery
from shardwright.wire.errors import CommandError
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import (
    AFTER_ID,
    CURSOR_ID_AT,
    CURSOR_ID_END,
    FRAME_BYTES_MAX,
    InsertedDocument,
    Passage,
    Range,
    is_get_more,
)
from shardwright.wire.rawbson import INT64, InvalidBSONError, element
from shardwright.wire.request import Request

if TYPE_CHECKING:
    from shardwright.router.context.query_shapes import ShapeCounts
    from shardwright.sharding.routing_table import RoutingTable


_LIMIT: Final = element(b"limit", INT64, b"")


class BodyChange:
    """The change of a find's body for several shards: some elements are removed, and others appended.

    Attributes:
        added_bytes: the length of the appended elements less the removed ones.
    """

    __slots__ = ("_appended", "_kept", "_removed", "added_bytes")

    def __init__(self, removed: Sequence[Range], appended: bytes, end: int) -> None:
        """Create the change of frames of one layout.

        Args:
            removed: the removed elements, in order.
            end: the offset at which the body ends.
        """
        starts = [0, *[at for _, at in removed]]
        ends = [*[at for at, _ in removed], end - 1]
        self._kept = [slice(*each) for each in zip(starts, ends, strict=True)]
        self._removed = removed
        self._appended = appended
        self.added_bytes = len(appended) - sum(at - start for start, at in removed)

    def apply(self, frame: bytes, limit: int | None) -> bytes:
        """Change the body of a frame, with another limit if one is given. Length fields are left unchanged."""
        appended = self._appended
        if limit is not None:
            appended = _LIMIT + limit.to_bytes(8, "little") + appended[len(_LIMIT) + 8 :]
        return b"".join((*[frame[each] for each in self._kept], appended, b"\0"))

    def moved(self, at: int) -> int:
        """Return the offset after the change of a part that is not removed."""
        return at - sum(end - start for start, end in self._removed if end <= at)


def body_change_of(request: Request, changed: bytes) -> BodyChange:
    """Return the change of a find's body into ``changed``, which `FindArguments.body_for_shards` has rewritten."""
    spans = sorted(request.fields[name][1:4:2] for name in REWRITTEN if name in request.fields)
    removed = [(BODY_AT + start, BODY_AT + end) for start, end in spans]
    appended_at = len(request.body) - sum(end - start for start, end in removed) - 1
    return BodyChange(removed, changed[appended_at:-1], BODY_AT + len(request.body))


class RouterPassage(Passage):
    """A layout of requests that go to one shard, or to all shards of a collection.

    All places refer to frames after admission, with an inserted document moved to the end.

    Attributes:
        admission: the admission of its frames; None without access control.
        passed_on: the routing. Its shards are fixed if the collection is unsharded, or if they are all of its shards.
        document_in_body: the place of a document in the body, if there is one.
        key: the places of the shard key in the query; None for inserts and unsharded collections.
        change: the change of a find's body for several shards; None if no field but the limit changes.
        limit_at: the offset of the value of that limit; None without a limit.
        body_end: the offset at which the body ends.
        seconds: the time limit; 0 for none.
        target_counts: as returned by `TargetCounts.series`.
        shape_counts: the counts of its shape; None if shapes are not counted.
    """

    __slots__ = (
        "_inserted_at",
        "_sent_end",
        "_sent_time_at",
        "admission",
        "body_end",
        "change",
        "command",
        "common",
        "document_in_body",
        "is_read",
        "key",
        "limit_at",
        "needs_id",
        "passed_on",
        "seconds",
        "shape_counts",
        "table",
        "target_counts",
    )

    def __init__(
        self,
        frame: bytes,
        free: list[Range],
        epoch: int,
        document: InsertedDocument | None,
        *,
        admission: FrameAdmission | None,
        command: str,
        is_read: bool,
        passed_on: PassedOn,
        common: CommonFields,
        key: KeyInQuery | None,
        limit_at: Range | None,
        change: BodyChange | None,
        body_end: int,
        seconds: float,
        target_counts: tuple[dict[str, int], str] | None,
        shape_counts: "ShapeCounts | None",
    ) -> None:
        super().__init__(frame, free, epoch, document)
        self.admission = admission
        self.command = command
        self.is_read = is_read
        self.passed_on = passed_on
        self.table: RoutingTable | None = passed_on.routing.table
        self.common = common
        self.key = key
        self.limit_at = limit_at
        self.change = change
        self._sent_end, self._sent_time_at = body_end, common.time_at
        if change is not None:
            self._sent_end += change.added_bytes
            self._sent_time_at = change.moved(common.time_at)
        self.body_end = body_end
        self.seconds = seconds
        self.target_counts = target_counts
        self.shape_counts = shape_counts
        pattern = None if self.table is None else self.table.key_pattern
        self.document_in_body = document if document is not None and document.is_in_body else None
        self._inserted_at = 0
        if document is not None:
            self._inserted_at = body_end if document.is_in_body else document.at
            if admission is not None and not document.is_in_body:
                self._inserted_at += admission.added_bytes
        self.needs_id = pattern is not None and any(each.path[0] == b"_id" for each in pattern.fields)

    def shard_of(self, frame: bytes) -> str | None:
        """Return the shard that a frame goes to; None leaves the decision to the ordinary path."""
        table = self.table
        if table is None:
            return self.passed_on.shard_id
        try:
            if self.key is not None:
                key = self.key.bytes_in(frame)
            else:
                at = self._inserted_at
                if self.needs_id and not frame.startswith(b"_id\0", at + 5):
                    return None
                key = table.key_pattern.key_bytes_of_document(frame[at:])
                if key == table.key_pattern.global_max_bytes():
                    return None
        except (CommandError, InvalidBSONError):
            return None
        return table.shard_for_key(key)

    def for_shards(self, frame: bytes, share: int | None) -> bytes:
        """Change a find's frame for several shards, with a smaller limit if one is given; lengths stay as they were."""
        if self.change is not None:
            return self.change.apply(frame, share)
        if share is None or self.limit_at is None:
            return frame
        start, end = self.limit_at
        return b"".join((frame[:start], share.to_bytes(end - start, "little"), frame[end:]))

    def request_for(self, shard_id: str, frame: bytes, clock: VectorClock) -> bytes | None:
        """Build the shard's frame; None if the client's cluster time is later than the router's.

        Args:
            frame: the client's frame, after `for_shards` if it goes to several.
        """
        elements = self.passed_on.routing.versions_for(shard_id)
        end, at = self._sent_end, self._sent_time_at
        if not at:
            body = frame[BODY_AT + 4 : end - 1]
            if not clock.is_told_in(frame, end if self.document_in_body is None else len(frame)):
                elements += clock.external_elements
        else:
            order = clock.compare(frame, at)
            if order > 0:
                return None
            if order == 0:
                body = frame[BODY_AT + 4 : end - 1]
            else:
                body = b"".join((frame[BODY_AT + 4 : at], clock.packed_cluster_time, frame[at + 8 : end - 1]))
        added = len(elements)
        request = b"".join(
            (
                (len(frame) + added).to_bytes(4, "little"),
                frame[4:8],
                AFTER_ID,
                (end - BODY_AT + added).to_bytes(4, "little"),
                body,
                elements,
                b"\0",
                frame[end:],
            )
        )
        document = self.document_in_body
        return request if document is None else document.moved_back(request, len(frame) - end)


class RouterGetMorePassage(Passage):
    """A layout of ``getMore`` requests for cursors on one shard.

    Attributes:
        namespace: the ``db.collection`` of the cursors.
        common: the places of drivers' fields.
        shape_counts: the counts of its shape; None if shapes are not counted.
    """

    __slots__ = ("common", "namespace", "shape_counts")

    def __init__(
        self, frame: bytes, epoch: int, *, namespace: str, common: CommonFields, shape_counts: "ShapeCounts | None"
    ) -> None:
        super().__init__(frame, [*common.free, (CURSOR_ID_AT, CURSOR_ID_END)], epoch)
        self.namespace = namespace
        self.common = common
        self.shape_counts = shape_counts

    @classmethod
    def of(cls, request: Request, epoch: int, namespace: str, shape_counts: "ShapeCounts | None") -> Self | None:
        """Learn the layout of a request; None if values are in unexpected places."""
        frame, fields = request.message.frame, request.fields
        if len(frame) != BODY_AT + len(request.body) or len(frame) > FRAME_BYTES_MAX or not is_get_more(frame):
            return None
        common = CommonFields.of(frame, fields)
        if common is None or common.number_at or common.awaited_at:
            return None
        if common.lsid is not None and common.lsid[1] - common.lsid[0] != SESSION_BYTES:
            return None
        return cls(frame, epoch, namespace=namespace, common=common, shape_counts=shape_counts)

    def may_read(self, frame: bytes, entry: OpenCursor) -> bool:
        """Whether the sender of a frame may read a cursor now. The cursor of a user is left to the ordinary path."""
        lsid, owner = self.common.lsid, entry.owner
        session = None if lsid is None else frame[lsid[0] + SESSION_ID_AT : lsid[1] - 1]
        return (
            not entry.is_checked_out
            and entry.cursor.namespace == self.namespace
            and owner.session == session
            and owner.transaction is None
            and not owner.user
        )

    def request_for(self, frame: bytes, cursor_id: int, clock: VectorClock) -> bytes | None:
        """Build the shard's frame; None if the client's cluster time is later than the router's."""
        at, remote_id = self.common.time_at, cursor_id.to_bytes(8, "little", signed=True)
        start = frame[:8], AFTER_ID, frame[BODY_AT:CURSOR_ID_AT], remote_id
        if not at:
            return with_cluster_time(b"".join((*start, frame[CURSOR_ID_END:])), clock)
        if clock.compare(frame, at) > 0:
            return None
        return b"".join((*start, frame[CURSOR_ID_END:at], clock.packed_cluster_time, frame[at + 8 :]))
