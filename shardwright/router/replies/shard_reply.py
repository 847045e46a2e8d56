"""The outcome of one request to a shard: a reply, or the error in its place."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.placement.routing_info import StaleRoutingError, UnknownShardError
from shardwright.router.replies.reply_builder import (
    cluster_time_of_usual,
    operation_time_of_usual,
    without_write_metadata,
)
from shardwright.sharding.clock import CLUSTER_TIME, OPERATION_TIME, VectorClock, operation_time_element
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.pipelines.pipeline import JOINED_NAMESPACE, asks_for_another_way
from shardwright.sharding.transaction_protocol import take_read_only
from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.message import OpMsg, with_body
from shardwright.wire.rawbson import (
    InvalidBSONError,
    Span,
    append,
    decode_exactly,
    decode_value,
    index,
    without,
    without_spans,
)

_ELECTION_ID: Final = b"electionId"
_READ_ONLY: Final = b"readOnly"
_TIMES: Final = frozenset({CLUSTER_TIME, OPERATION_TIME})

_SHORT_BYTES_MAX: Final = 4_096
"""Up to this size, searching for a field's name is faster than locating all fields."""

INTERNAL_REPLY_FIELDS: Final = frozenset(
    {
        b"$configTime",
        b"$topologyTime",
        b"$configServerState",
        b"$gleStats",
        b"$oplogQueryData",
        b"$replData",
        b"lastCommittedOpTime",
        _READ_ONLY,
    }
)
"""Fields of replies between servers, hidden from clients."""


class ShardedViewError(Exception):
    """A shard cannot run a read of a view alone; its error defines the view (see `router.reads.views`)."""

    def __init__(self, error: CommandError, body: bytes) -> None:
        super().__init__(str(error))
        self.error = error
        self.body = body


class JoinNeededError(CommandError):
    """No shard has all collections that a pipeline reads.

    Args:
        error: the client's error if the router cannot join the collections.
        elsewhere: the collections missing on the shard that would run the pipeline; empty if unknown.
    """

    def __init__(self, error: CommandError, elsewhere: frozenset[str] = frozenset()) -> None:
        super().__init__(error.code, error.message, labels=error.labels)
        self.elsewhere = elsewhere


class ShardReply:
    """The reply of one shard.

    Attributes:
        address: the member that answered; empty when none did.
        sources: the hosts whose cursors the member reads for the cursor in the reply.
        frame: the reply as received; empty when there is none.
        error: set if the reply has ``ok: 0``, or in place of a reply.
        seconds: time from sending the request until the reply; set when `ShardCounts` counts it.
    """

    __slots__ = (
        *("_body", "_fields", "_usual_cluster_time", "address", "error", "frame", "seconds", "shard_id", "sources"),
    )

    seconds: float

    def __init__(self, shard_id: str, address: str, frame: bytes) -> None:
        """Read the top level of a reply.

        Raises:
            RemoteProtocolError: the frame is not a reply.
        """
        self.shard_id = shard_id
        self.address = address
        self.sources: tuple[str, ...] = ()
        self.frame = frame
        self.error: CommandError | None = None
        self._body: bytes | None = None
        self._fields: dict[bytes, Span] | None = None
        self._usual_cluster_time = cluster_time_of_usual(frame)
        if not self._usual_cluster_time:
            ok = self.fields.get(b"ok")
            if ok is None or not decode_value(self.body, ok):
                self.error = CommandError.from_reply(self.document)

    @classmethod
    def failed(cls, shard_id: str, error: CommandError) -> "ShardReply":
        """Create the outcome of a request that a shard did not answer."""
        reply = object.__new__(cls)
        reply.shard_id = shard_id
        reply.address = ""
        reply.frame = reply._body = b""
        reply._fields = {}
        reply._usual_cluster_time = 0
        reply.error = error
        return reply

    @property
    def body(self) -> bytes:
        """The raw reply document."""
        if self._body is None:
            self._body = OpMsg(self.frame).body
        return self._body

    @property
    def fields(self) -> dict[bytes, Span]:
        """The spans of the top-level elements of the body."""
        if self._fields is None:
            try:
                self._fields = index(self.body)
            except InvalidBSONError as error:
                raise RemoteProtocolError(f"reply of {self.shard_id}: {error}") from error
        return self._fields

    def has(self, name: bytes) -> bool:
        """Whether the reply has a top-level field. A search first rules out most replies, which do not contain it."""
        return (len(self.frame) > _SHORT_BYTES_MAX or name in self.frame) and name in self.fields

    @property
    def is_usual(self) -> bool:
        """Whether the reply ends like a mongod's, and so has no fields hidden from clients."""
        return bool(self._usual_cluster_time)

    @property
    def operation_time(self) -> int:
        """The packed ``operationTime``, 0 if there is none."""
        if self._usual_cluster_time:
            return operation_time_of_usual(self.frame)
        time = self.get(OPERATION_TIME)
        return pack_timestamp(time) if isinstance(time, Timestamp) else 0

    def raise_operation_time(self, operation_time: int, clock: VectorClock) -> None:
        """Raise the reply's ``operationTime``, because another shard has contributed newer data to it.

        Args:
            clock: of this router, which has seen that time.
        """
        if operation_time <= self.operation_time:
            return
        times = clock.time.external_elements() + operation_time_element(operation_time)
        self.frame = with_body(self.frame, append(without(self.body, _TIMES), times))
        self._body = self._fields = None
        self._usual_cluster_time = cluster_time_of_usual(self.frame)

    def tell(self, clock: VectorClock) -> None:
        """Advance a clock to the times that the shard gossips.

        Raises:
            CommandError: TypeMismatch or NoSuchKey, they are malformed.
        """
        if self._usual_cluster_time:
            clock.observe_cluster_time(self._usual_cluster_time)
        else:
            clock.observe(self.body, self.fields)

    def take_read_only(self) -> bool:
        """Whether no statement of the transaction has changed anything on the shard so far (``readOnly``).

        The field is removed from a usual reply, which is forwarded to clients unchanged.
        """
        taken = take_read_only(self.frame) if self._usual_cluster_time else None
        if taken is None:
            return bool(self.get(_READ_ONLY, False))
        self.frame, is_read_only = taken
        self._body = self._fields = None
        return is_read_only

    @property
    def document(self) -> dict[str, Any]:
        """The whole reply, decoded."""
        return decode_exactly(self.body)

    def get(self, name: bytes, default: Any = None) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """Return the decoded value of one top-level field."""
        span = self.fields.get(name)
        return default if span is None else decode_value(self.body, span)

    def raise_if_stale(self) -> None:
        """Raise `StaleRoutingError` if the shard refused because of a routing version, or has been removed."""
        error = self.error
        if error is not None and (
            has_category(error.code, Category.STALE_ROUTING) or isinstance(error, UnknownShardError)
        ):
            raise StaleRoutingError(error)

    @property
    def asks_for_another_way(self) -> bool:
        """Whether the shard cannot run a read alone, so that the router must resolve the view, or join."""
        return self.error is not None and asks_for_another_way(self.error)

    def raise_if_view(self) -> None:
        """Raise `ShardedViewError` if the shard cannot run a read of a view alone."""
        if self.error is not None and self.error.code == ErrorCode.CommandOnShardedViewNotSupportedOnMongod:
            raise ShardedViewError(self.error, self.body)

    def raise_if_join_needed(self) -> None:
        """Raise `JoinNeededError` if a pipeline reads a collection that the shard does not have all of."""
        if self.error is not None and JOINED_NAMESPACE in self.error.extra:
            raise JoinNeededError(self.error)

    def raise_for_error(self) -> None:
        """Raise the shard's error: `StaleRoutingError` for a routing version, else a `CommandError`."""
        if self.error is not None:
            self.raise_if_stale()
            raise self.error

    def for_client(self, hidden: frozenset[bytes] = INTERNAL_REPLY_FIELDS) -> bytes:
        """Return the frame of this reply without fields hidden from clients; the received bytes if there are none."""
        if self._usual_cluster_time:
            if hidden is INTERNAL_REPLY_FIELDS:
                return self.frame
            if len(self.frame) <= _SHORT_BYTES_MAX:
                frame = short_for_client(self.frame, hidden)
                if frame is not None:
                    return frame
        found = [span for name, span in self.fields.items() if name in hidden]
        if not found:
            return self.frame
        return with_body(self.frame, without_spans(self.body, found))


def short_for_client(frame: bytes, hidden: frozenset[bytes]) -> bytes | None:
    """Remove hidden fields from a short usual reply; return None if the reply is long or may contain others of them."""
    if len(frame) > _SHORT_BYTES_MAX:
        return None
    shown = without_write_metadata(frame) if _ELECTION_ID in hidden else frame
    return None if _searching(hidden)(shown) else shown


@cache
def _searching(names: frozenset[bytes]) -> Callable[[bytes], object]:
    """Return a function that searches for any of these names in one call."""
    return re.compile(b"|".join(map(re.escape, names))).search


def latest_operation_time(replies: Iterable[ShardReply]) -> int:
    """Return the packed ``operationTime`` of several shards' combined reply, 0 if none of them has it."""
    return max((reply.operation_time for reply in replies), default=0)


_NOT_ANSWER: Final = {*TIMES} | {name.decode(errors="replace") for name in INTERNAL_REPLY_FIELDS}


def answer_of(reply: ShardReply) -> dict[str, Any]:
    """Return the reply of a shard with ``ok``, without the times and the fields between servers.

    An error in place of a reply is shown in the form of a reply.
    """
    if not reply.frame:
        assert reply.error is not None
        return reply.error.reply()
    return _answer_in(reply.document)


def answer_in(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a successful reply of a config server as the beginning of the router's own."""
    return without_ok(_answer_in(reply))


def _answer_in(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in _NOT_ANSWER}


def without_ok(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove ``ok``, so that ``answer`` can begin a reply that gets its own."""
    return {name: value for name, value in answer.items() if name != "ok"}


def raise_worst(replies: Iterable[ShardReply]) -> None:
    """Raise the most significant of several shards' errors: a stale version first, then the first of the others.

    Raises:
        StaleRoutingError: a shard refused the versions.
        ShardedViewError: a shard cannot run a read of a view alone.
        JoinNeededError: a pipeline reads collections that are not on the shard.
    """
    failed = [reply for reply in replies if reply.error is not None]
    for reply in failed:
        reply.raise_if_stale()
        reply.raise_if_view()
        reply.raise_if_join_needed()
    # A shard's own error is more informative than a network error, so it comes first.
    failed.sort(key=lambda reply: reply.error is not None and has_category(reply.error.code, Category.NETWORK))
    for reply in failed:
        reply.raise_for_error()
