"""A reply passed on in pieces equals the one that would have been sent whole."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.router.exec.shard import BatchRelay
from shardwright.router.exec.stage import Relayed
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.cluster_time import TimeSigner
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.message import CHECKSUM_PRESENT, op_msg

if TYPE_CHECKING:
    from shardwright.wire.transport.client_connection import ClientConnection

_CLIENT = cast("ClientConnection", SimpleNamespace(stream=None, unread_replies=None))
_CLUSTER_TIME = {"clusterTime": Timestamp(5, 1), "signature": {"hash": bytes(20), "keyId": bson.Int64(0)}}
_END: dict[str, Any] = {"ok": 1.0, "$clusterTime": _CLUSTER_TIME, "operationTime": Timestamp(5, 1)}


def reply(cursor: dict[str, Any] | None = None, *, remote_id: int = 100, flags: int = 0, **fields: Any) -> bytes:  # noqa: ANN401 - any fields
    """A reply to a getMore, with three documents if no cursor is given."""
    whole = {"nextBatch": [{"n": number, "text": "x" * 500} for number in range(3)]} if cursor is None else cursor
    body = {"cursor": {**whole, "id": bson.Int64(remote_id), "ns": "test.c"}, **fields, **_END}
    return op_msg(bson.encode(body), request_id=7, response_to=8, flags=flags)


def relay(*, is_last: bool = True, relayed: Relayed | None = None) -> BatchRelay:
    return BatchRelay(_CLIENT, TimeSigner(), relayed or Relayed(), response_to=9, cursor_id=5, is_last=is_last)


def passed_on(relaying: BatchRelay, frame: bytes, beginning_bytes: int) -> bytes:
    begun = relaying.begin(frame[:beginning_bytes])
    assert begun is not None
    changed, kept = begun
    assert len(changed) == beginning_bytes
    end = relaying.end(frame[-kept:])
    assert len(end) == kept
    return changed + frame[beginning_bytes:-kept] + end


@pytest.mark.parametrize("beginning_bytes", [100, 1_000, 1_500])
@pytest.mark.parametrize(
    ("remote_id", "is_last", "expected"), [(100, True, 5), (100, False, 5), (0, True, 0), (0, False, 5)]
)
def test_only_ids_are_changed(beginning_bytes: int, remote_id: int, is_last: bool, expected: int) -> None:
    frame = reply(remote_id=remote_id)
    whole = ShardReply("a", "a:1", frame)
    received = passed_on(relay(is_last=is_last), frame, beginning_bytes)
    assert received == CursorReply.of(whole).with_cursor_id(expected, response_to=9)


@pytest.mark.parametrize("beginning_bytes", [100, 1_500])
def test_bytes_and_documents_are_counted(beginning_bytes: int) -> None:
    frame, relayed = reply(), Relayed()
    passed_on(relay(relayed=relayed), frame, beginning_bytes)
    assert relayed == Relayed(len(frame), 3)


def test_documents_are_not_counted_if_the_last_one_is_long() -> None:
    frame, relayed = reply({"nextBatch": [{"text": "x" * 100_000}] * 3}), Relayed()
    passed_on(relay(relayed=relayed), frame, 100)
    assert relayed == Relayed(len(frame), 0)


def test_the_digest_tells_what_the_reply_told() -> None:
    relaying = relay()
    passed_on(relaying, reply({"nextBatch": [{"text": "x" * 500}], "partialResultsReturned": True}), 100)
    digest = ShardReply("a", "a:1", relaying.digest)
    cursor = CursorReply.of(digest)
    assert digest.is_usual
    assert (cursor.cursor_id, cursor.namespace, cursor.is_partial, cursor.documents()) == (100, "test.c", True, [])
    assert digest.get(b"operationTime") == Timestamp(5, 1)


@pytest.mark.parametrize(
    "frame",
    [
        op_msg(bson.encode({"ok": 0.0, "errmsg": "x" * 1_000}), request_id=1),
        op_msg(bson.encode({"text": "x" * 1_000, **_END}), request_id=1),
        reply({"firstBatch": [{"text": "x" * 500}]}),
        reply({"other": 1, "nextBatch": [{"text": "x" * 500}]}),
        reply(flags=CHECKSUM_PRESENT),
        reply(text="x" * 100_000),
    ],
    ids=["error", "no cursor", "first batch", "batch not first", "checksum", "long end"],
)
def test_what_looks_otherwise_is_not_passed_on_in_pieces(frame: bytes) -> None:
    assert relay().begin(frame[:300]) is None


def test_too_little_to_tell() -> None:
    assert relay().begin(reply()[:40]) is None


def test_lengths_that_cannot_be() -> None:
    frame = bytearray(reply())
    frame[21 + 4 + 8 : 21 + 4 + 12] = (1 << 30).to_bytes(4, "little")
    assert relay().begin(bytes(frame[:300])) is None


def test_a_reply_without_an_id_behind_its_batch() -> None:
    body = {"cursor": {"nextBatch": [{"text": "x" * 500}], "ns": "test.c"}, **_END}
    frame = op_msg(bson.encode(body), request_id=1)
    relaying = relay()
    begun = relaying.begin(frame[:300])
    assert begun is not None
    with pytest.raises(RemoteProtocolError):
        relaying.end(frame[-begun[1] :])
