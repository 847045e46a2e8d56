"""What came back from one shard: a reply, or the reason why there is none."""

from struct import Struct
from typing import Any, Final

import bson

from wire.error_codes import Category, has_category
from wire.errors import CommandError, RemoteProtocolError
from wire.message import Header, OpMsg, op_msg
from wire.rawbson import DOUBLE, VALUE_CODEC, InvalidBSONError, Span, decode_value, index, without_spans

INTERNAL_REPLY_FIELDS: Final = frozenset(
    {
        b"$configTime",
        b"$topologyTime",
        b"$configServerState",
        b"$gleStats",
        b"$oplogQueryData",
        b"$replData",
        b"lastCommittedOpTime",
        b"readOnly",
    }
)
"""What shards and config servers tell each other in replies and clients never see."""

_ONE: Final = Struct("<d").pack(1.0)


class StaleRoutingError(Exception):
    """A shard refused an operation because the router's knowledge of where data is was out of date (or its own).

    Attributes:
        error: the shard's StaleConfig, StaleDbVersion, StaleEpoch or the like.
    """

    def __init__(self, error: CommandError) -> None:
        super().__init__(str(error))
        self.error = error


class ShardReply:
    """The reply of one shard.

    Attributes:
        shard_id: the shard.
        address: the member that answered; empty when none did.
        frame: the reply as it came; empty when there is none.
        body: the raw reply document.
        fields: where its top-level elements are.
        error: set if the reply says ``ok: 0``, or in place of a reply.
    """

    __slots__ = ("address", "body", "error", "fields", "frame", "shard_id")

    def __init__(self, shard_id: str, address: str, frame: bytes) -> None:
        """Read the top level of a reply.

        Raises:
            RemoteProtocolError: the frame is no reply.
        """
        self.shard_id = shard_id
        self.address = address
        self.frame = frame
        self.body = body = OpMsg(frame).body
        self.error: CommandError | None = None
        try:
            self.fields: dict[bytes, Span] = index(body)
        except InvalidBSONError as error:
            raise RemoteProtocolError(f"reply of {shard_id}: {error}") from error
        ok = self.fields.get(b"ok")
        if ok is not None and ok[0] == DOUBLE and body[ok[2] : ok[3]] == _ONE:
            return
        if ok is None or not decode_value(body, ok):
            self.error = CommandError.from_reply(self.document)

    @classmethod
    def failed(cls, shard_id: str, error: CommandError) -> "ShardReply":
        """Stands for the reply that a shard did not give."""
        reply = object.__new__(cls)
        reply.shard_id = shard_id
        reply.address = ""
        reply.frame = reply.body = b""
        reply.fields = {}
        reply.error = error
        return reply

    @property
    def document(self) -> dict[str, Any]:
        """The whole reply, decoded."""
        return bson.decode(self.body, codec_options=VALUE_CODEC)

    def get(self, name: bytes, default: Any = None) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """The decoded value of one top-level field."""
        span = self.fields.get(name)
        return default if span is None else decode_value(self.body, span)

    @property
    def is_stale(self) -> bool:
        """Whether the shard refused because of a routing version."""
        return self.error is not None and has_category(self.error.code, Category.STALE_ROUTING)

    def raise_if_stale(self) -> None:
        """Raise `StaleRoutingError` if the shard refused because of a routing version."""
        if self.error is not None and has_category(self.error.code, Category.STALE_ROUTING):
            raise StaleRoutingError(self.error)

    def raise_for_error(self) -> None:
        """Raise the shard's error: `StaleRoutingError` for a routing version, else a `CommandError`."""
        if self.error is not None:
            self.raise_if_stale()
            raise self.error

    def for_client(self, hidden: frozenset[bytes] = INTERNAL_REPLY_FIELDS) -> bytes:
        """The frame of this reply, less what clients do not see; the very bytes that came if there is nothing to hide.

        Args:
            hidden: the fields to take out.
        """
        found = [span for name, span in self.fields.items() if name in hidden]
        if not found:
            return self.frame
        header = Header(self.frame)
        body = without_spans(self.body, found)
        return op_msg(body, request_id=header.request_id, response_to=header.response_to)
