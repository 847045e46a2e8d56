"""The ``aggregate`` that opens a change stream on a shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardwright.router.change_streams.specification import Specification
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, append, array_of_documents, element, encode_elements, without
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request

PIPELINE: Final = b"pipeline"
CURSOR: Final = b"cursor"
LSID: Final = b"lsid"

_FOR_CLIENTS_ONLY: Final = frozenset(
    {PIPELINE, CURSOR, LSID, b"apiVersion", b"apiStrict", b"apiDeprecationErrors", b"maxTimeMS"}
)
"""What the shards get in another form, or must not apply to what routers alone may ask for."""


@dataclass(frozen=True, slots=True)
class ShardCommand:
    """What all shards are sent, except for where the stream starts.

    Attributes:
        body: the client's command without what is only for the router.
        specification: of the stream.
        stages: raw stages that the shards run after ``$changeStream``.
        preference: which member of a shard may answer.
    """

    body: bytes
    specification: Specification
    stages: tuple[bytes, ...]
    preference: ReadPreference

    @classmethod
    def of(
        cls, request: Request, specification: Specification, stages: Sequence[bytes], preference: ReadPreference
    ) -> "ShardCommand":
        """The command for shards that a client's command becomes."""
        merging = encode_elements({"fromMongos": True, "needsMerge": True, "cursor": {"batchSize": 0}})
        body = append(without(request.body, _FOR_CLIENTS_ONLY), merging)
        return cls(body, specification, tuple(stages), preference)

    def frame(self, first: bytes, session: bytes) -> bytes:
        """The request.

        Args:
            first: the raw ``$changeStream`` stage.
            session: the raw element ``lsid`` of the client's current command, if it has one.
        """
        pipeline = element(PIPELINE, ARRAY, array_of_documents([first, *self.stages]))
        return op_msg(append(self.body, session + pipeline), request_id=next_request_id())
