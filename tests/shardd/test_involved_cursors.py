"""The cursors on several collections that are remembered."""

from collections.abc import Collection, Iterable

import pytest
import trio
from bson.int64 import Int64

from shardwright.shardd import cursor_batches
from shardwright.shardd.cursor_batches import InvolvedCursors
from shardwright.wire.errors import BackendError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request

FIRST = 4


def raw(cursor_id: int) -> bytes:
    return cursor_id.to_bytes(8, "little", signed=True)


class CursorsOnMongod:
    """Stands in for the local mongod: some cursors are open, or mongod does not answer."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.listings = 0
        self.answers = True

    async def still_open(self, cursor_ids: Collection[bytes]) -> set[bytes]:
        self.listings += 1
        if not self.answers:
            raise BackendError("mongod", "no answer", sent=True)
        return {each for each in cursor_ids if each in map(raw, self.open)}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_batches, "_FORGOTTEN_AT_FIRST", FIRST)


def opening_reply(cursor_id: int) -> bytes:
    cursor = {"firstBatch": [], "id": Int64(cursor_id), "ns": "d.c"}
    return op_msg(encode_document({"cursor": cursor, "ok": 1.0}), request_id=1)


def known_of(cursors: InvolvedCursors, ids: Iterable[int]) -> list[int]:
    found = []
    for cursor_id in ids:
        command = {"getMore": Int64(cursor_id), "collection": "c", "$db": "d"}
        if cursors.find(Request(OpMsg(op_msg(encode_document(command), request_id=1)))):
            found.append(cursor_id)
    return found


def new(mongod: CursorsOnMongod) -> InvolvedCursors:
    return InvolvedCursors(None, mongod.still_open)  # type: ignore[arg-type]


def open_all(cursors: InvolvedCursors, ids: Iterable[int]) -> None:
    async def main() -> None:
        for cursor_id in ids:
            await cursors.observe(opening_reply(cursor_id), ())

    trio.run(main)


def test_an_open_cursor_is_never_forgotten_however_many_others_there_are() -> None:
    mongod = CursorsOnMongod()
    mongod.open = set(range(1, 101))
    cursors = new(mongod)
    open_all(cursors, range(1, 101))
    assert known_of(cursors, range(1, 101)) == list(range(1, 101))


def test_cursors_that_have_ended_are_forgotten() -> None:
    mongod = CursorsOnMongod()
    mongod.open = {1}
    cursors = new(mongod)
    open_all(cursors, range(1, 1001))
    known = known_of(cursors, range(1, 1001))
    assert 1 in known
    assert len(known) < FIRST


def test_cursors_are_listed_seldom() -> None:
    mongod = CursorsOnMongod()
    mongod.open = set(range(1, 1001))
    open_all(new(mongod), range(1, 1001))
    assert mongod.listings <= 10


def test_none_is_forgotten_while_mongod_does_not_answer() -> None:
    mongod = CursorsOnMongod()
    mongod.answers = False
    cursors = new(mongod)
    open_all(cursors, range(1, 21))
    assert known_of(cursors, range(1, 21)) == list(range(1, 21))


def test_substitutes_are_known_too() -> None:
    mongod = CursorsOnMongod()
    mongod.open = set(range(20))
    cursors = new(mongod)
    open_all(cursors, (1, 2))
    for substitute in (11, 12, 12):
        cursors.observe_substitute(raw(2), raw(substitute))
    open_all(cursors, (3, 4))
    assert known_of(cursors, range(20)) == [1, 2, 3, 4, 11, 12]


@pytest.mark.parametrize(
    ("reply", "is_known"),
    [
        ({"ok": 0.0, "code": 143, "codeName": "CursorInUse", "errmsg": "in use"}, True),
        ({"cursor": {"nextBatch": [], "id": Int64(1), "ns": "d.c"}, "ok": 1.0}, True),
        ({"cursor": {"nextBatch": [], "id": Int64(0), "ns": "d.c"}, "ok": 1.0}, False),
    ],
    ids=["in use", "open", "ended"],
)
def test_a_cursor_is_known_until_a_batch_ends_it(reply: dict[str, object], *, is_known: bool) -> None:
    cursors = new(CursorsOnMongod())
    open_all(cursors, [1])
    command = {"getMore": Int64(1), "collection": "c", "$db": "d"}
    request = Request(OpMsg(op_msg(encode_document(command), request_id=1)))
    cursors.observe_batch(request, op_msg(encode_document(reply), request_id=1))
    assert bool(known_of(cursors, [1])) is is_known
