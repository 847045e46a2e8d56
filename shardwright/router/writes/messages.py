"""A shard's part of one round of a batch, and the message that carries it."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from shardwright.router.writes.batch import WriteBatch
from shardwright.sharding.clock import config_time_element, topology_time_element
from shardwright.sharding.versions import IGNORED, shard_version_element
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import ARRAY, INT32, append, element, from_elements, without


class ShardBatch:
    """The statements of one round for one shard.

    Attributes:
        is_broadcast: its statements also go to other shards; versions are not checked.
        positions: the positions of the statements in the client's batch.
    """

    __slots__ = ("is_broadcast", "positions", "shard")

    def __init__(self, shard: str, *, is_broadcast: bool, positions: Iterable[int] = ()) -> None:
        self.shard = shard
        self.is_broadcast = is_broadcast
        self.positions = list(positions)


_IGNORED_VERSION_ELEMENT: Final = shard_version_element(IGNORED)

_BODY_FIRST: Final = 0
_INT32_TYPE: Final = bytes((INT32,))
_pack_int32 = Struct("<i").pack


def message_with_versions(message: OpMsg, versions: bytes, body: bytes | None = None) -> bytes:
    """Add version elements to a client's message, optionally with another body; its sections are copied unchanged."""
    frame = message.frame
    if not message.sequences:
        sections = b""
    elif frame[20] == _BODY_FIRST and not message.flags & CHECKSUM_PRESENT:
        sections = frame[21 + len(message.body) :]
    else:
        sections = b"".join([sequence.section() for sequence in message.sequences])
    return op_msg(append(body or message.body, versions), request_id=message.request_id, sections=sections)


def broadcast_elements(topology_time: int, config_time: int) -> bytes:
    """Build the elements that broadcast statements carry instead of versions, since any shard may own matches.

    Args:
        topology_time: the packed topology time of the set of shards, 0 if unknown; a shard that has seen a later change
            reports it in its reply.
        config_time: the packed config time of the router's cache, 0 if unknown.
    """
    gossip = config_time_element(config_time) if config_time else b""
    return gossip + _IGNORED_VERSION_ELEMENT + topology_time_element(topology_time)


def shard_message(batch: WriteBatch, part: ShardBatch, versions: bytes) -> bytes:
    """Build a message with some of the statements.

    Statements of a retryable write carry their ids from the client's batch. A shard then recognizes them however the
    batch is divided, and also in the transaction that may have to execute them. Broadcast statements in a router's
    session carry them too.
    """
    body, elements = batch.divided_body, versions
    own_session = batch.own_session if part.is_broadcast else b""
    if own_session:
        body = without(body, {b"lsid"})
    if batch.is_numbered or own_session:
        ids = batch.statement_ids()
        elements = _statement_ids([ids[position] for position in part.positions]) + own_session + versions
    statements = batch.statements
    return op_msg(
        append(body, elements),
        request_id=batch.request.message.request_id,
        sections=encode_sequence(batch.kind.field, [statements[position] for position in part.positions]),
    )


def _statement_ids(ids: list[int]) -> bytes:
    entries = [b"%b%d\0%b" % (_INT32_TYPE, index, _pack_int32(each)) for index, each in enumerate(ids)]
    return element(b"stmtIds", ARRAY, from_elements(b"".join(entries)))
