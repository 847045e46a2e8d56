"""How many of the cursors on several collections are remembered."""

import pytest
from bson.int64 import Int64

from shardwright.shardd.operations import involved_cursors
from shardwright.shardd.operations.involved_cursors import InvolvedCursors
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request


def opening_reply(cursor_id: int) -> bytes:
    cursor = {"firstBatch": [], "id": Int64(cursor_id), "ns": "d.c"}
    return op_msg(encode_document({"cursor": cursor, "ok": 1.0}), request_id=1)


def is_known(cursors: InvolvedCursors, cursor_id: int) -> bool:
    command = {"getMore": Int64(cursor_id), "collection": "c", "$db": "d"}
    return cursors.find(Request(OpMsg(op_msg(encode_document(command), request_id=1)))) == cursor_id


def test_substitutes_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(involved_cursors, "_KEPT_MAX", 3)
    cursors = InvolvedCursors(None)  # type: ignore[arg-type]
    for cursor_id in (1, 2, 3):
        cursors.observe(opening_reply(cursor_id), ())
    for substitute in (11, 12, 12):
        cursors.observe_substitute((3).to_bytes(8, "little"), substitute.to_bytes(8, "little"))
    assert [each for each in (1, 2, 3, 11, 12) if is_known(cursors, each)] == [3, 11, 12]
