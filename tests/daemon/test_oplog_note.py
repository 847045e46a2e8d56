"""Notes in the oplog of a mongod whose global lock is taken."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shardwright.daemon.oplog_note import append_oplog_note
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

NOTE = {"appendOplogNote": 1, "data": {}}


class Busy:
    """A mongod that refuses some commands.

    Args:
        codes: the errors of its first replies.
    """

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked = 0

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        assert (db, command) == ("admin", NOTE)
        self.asked += 1
        if self.codes:
            raise CommandError(self.codes.pop(0), "why")
        return {"ok": 1.0}


def append(mongod: Busy) -> dict[str, Any]:
    return trio.run(append_oplog_note, mongod.command, NOTE, clock=MockClock(autojump_threshold=0))


def test_a_note_waits_for_the_lock() -> None:
    mongod = Busy(*[ErrorCode.LockFailed] * 5)
    assert append(mongod) == {"ok": 1.0}
    assert mongod.asked == 6


def test_a_note_does_not_wait_for_ever() -> None:
    with pytest.raises(CommandError) as raised:
        append(Busy(*[ErrorCode.LockFailed] * 10_000))
    assert raised.value.code == ErrorCode.LockFailed


def test_other_errors_are_final() -> None:
    mongod = Busy(ErrorCode.NotWritablePrimary)
    with pytest.raises(CommandError):
        append(mongod)
    assert mongod.asked == 1
