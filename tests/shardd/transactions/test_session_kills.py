"""Commands that kill sessions, concurrent with statements that have not reached mongod yet."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.user_write_block import GlobalLock
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import is_killed_by, session_key
from shardwright.shardd.transactions.statements import TransactionStatements
from shardwright.sharding.logical_sessions import NO_USER
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import index
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from tests.shardd.transactions.requests import request_of

if TYPE_CHECKING:
    from shardwright.daemon.sidecar.mongod import Upstream
    from shardwright.wire.transport.client_connection import ClientConnection

Command = dict[str, Any]

ID, OTHER = (Binary(bytes([number]) * 16, 4) for number in (1, 2))
USER = Binary(b"u" * 32)
CHILD = {"txnNumber": Int64(1), "txnUUID": OTHER}
FIRST = {"find": "c", "lsid": {"id": ID}, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}


def key_of(lsid: Command) -> bytes:
    raw = bson.encode({"lsid": lsid})
    session = session_key(raw, index(raw)[b"lsid"])
    assert session is not None
    return session


SESSIONS: dict[str, Command] = {
    "it": {"id": ID},
    "its child": {"id": ID, "uid": Binary(NO_USER), **CHILD},
    "another": {"id": OTHER},
    "another user's": {"id": ID, "uid": USER},
}
ALL = set(SESSIONS)


@pytest.mark.parametrize(
    ("command", "killed"),
    [
        ({"killSessions": [{"id": ID}]}, {"it", "its child"}),
        ({"killSessions": [{"id": ID, "uid": USER}]}, {"another user's"}),
        ({"killSessions": []}, ALL),
        ({"killAllSessions": []}, ALL),
        ({"killAllSessions": [{"user": "u", "db": "d"}]}, set()),
        ({"killAllSessionsByPattern": []}, ALL),
        ({"killAllSessionsByPattern": [{"lsid": {"id": OTHER, "uid": Binary(NO_USER)}}]}, {"another"}),
    ],
)
def test_which_sessions_a_command_kills(command: Command, killed: set[str]) -> None:
    is_killed = is_killed_by(request_of(command))
    assert {name for name, lsid in SESSIONS.items() if is_killed(key_of(lsid))} == killed


class FakeUpstream:
    """Notes the commands that the daemon sends to mongod by itself."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    async def command(self, db: str, command: Mapping[str, Any]) -> Command:
        self.commands.append(f"{db}.{next(iter(command))}")
        return {"ok": 1.0}


@pytest.mark.parametrize("reply", [{"ok": 1.0}, {"ok": 0.0, "code": 11601}])
def test_a_statement_that_begins_a_killed_transaction_has_it_aborted(reply: Command) -> None:
    upstream, open_ones = FakeUpstream(), OpenTransactions(GlobalLock())

    async def run(_: Request, transaction: OpenTransaction | None) -> bytes:
        assert transaction is not None
        transaction.is_killed = True
        return op_msg(bson.encode(reply), request_id=2, response_to=1)

    async def main() -> bytes | None:
        statements = TransactionStatements(open_ones)
        client = cast("ClientConnection", SimpleNamespace(stream=SimpleNamespace(has_peer_left=False)))
        return await statements.run(client, cast("Upstream", upstream), request_of(FIRST), run)

    if reply["ok"]:
        with pytest.raises(CommandError) as raised:
            trio.run(main)
        assert raised.value.code == 11601
    else:
        answered = trio.run(main)
        assert answered is not None
        assert decode_reply(answered) == reply
    assert upstream.commands == ["admin.abortTransaction"]
    assert not len(open_ones)
