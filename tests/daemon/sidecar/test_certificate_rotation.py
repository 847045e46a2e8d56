"""New certificates for a daemon and its mongod when the daemon gets the signal, whatever the mongod says."""

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shardwright.daemon.sidecar.handler import rotate_certificates_of_both
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from tests.transports import new_transport

BROKEN = CommandError(ErrorCode.InvalidSSLConfiguration, "a file cannot be used")


class FakePool:
    """Connections to a mongod.

    Attributes:
        failure: its answer instead of success.
        commands: the received commands.
    """

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.commands: list[Mapping[str, Any]] = []

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.commands.append({**command, "$db": db})
        if self.failure is not None:
            raise self.failure
        return {"ok": 1.0}


@pytest.mark.parametrize(
    ("failure", "rotations"),
    [
        (None, 1),
        (BROKEN, 0),
        (BackendError("mongod.sock", "no such file", sent=False), 1),
        (CommandError(ErrorCode.CommandNotSupported, "TLS is disabled"), 1),
    ],
)
def test_both_rotate_unless_the_mongod_cannot_use_a_file(
    monkeypatch: pytest.MonkeyPatch, failure: Exception | None, rotations: int
) -> None:
    done: list[None] = []
    transport = new_transport()
    monkeypatch.setattr(transport.tls, "rotate", lambda: done.append(None))
    pool = FakePool(failure)

    async def main() -> None:
        mongod = SimpleNamespace(pool=pool, transport=transport)
        with pytest.raises(CommandError) if failure is BROKEN else nullcontext():
            await rotate_certificates_of_both(cast("Any", mongod), "signal")

    trio.run(main)
    assert len(done) == rotations
    assert pool.commands == [{"rotateCertificates": 1, "message": "signal", "$db": "admin"}]
