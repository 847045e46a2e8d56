"""Unexpected errors fail a resharding or a migration, and not the daemon."""

import trio

from shardwright.shardd.exchange.remote_sets import as_command_error
from shardwright.shardd.resharding.recipient import ReshardingRecipient
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError


class BrokenRecipient(ReshardingRecipient):
    """Fails in one of its steps."""

    async def _receive(self) -> CommandError:
        raise ExceptionGroup("steps", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")])


def test_a_recipient_fails_with_an_internal_error() -> None:
    recipient = BrokenRecipient.__new__(BrokenRecipient)
    failure = trio.run(recipient._try_to_receive)
    assert failure.code == ErrorCode.InternalError
    assert failure.message.startswith("ExceptionGroup: steps")


def test_the_form_of_errors() -> None:
    own = CommandError(ErrorCode.DuplicateKey, "two")
    assert as_command_error(own) is own
    for error in (BackendError("host:1", "gone", sent=True), RemoteProtocolError("nonsense")):
        assert as_command_error(error).code == ErrorCode.HostUnreachable
    assert as_command_error(ValueError("odd")).message == "ValueError: odd"
