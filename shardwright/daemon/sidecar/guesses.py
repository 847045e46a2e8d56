"""Delays against password guessing at a sidecar, as at a router, although the mongod verifies the passwords.

The mongod refuses an unknown user at the first step of a conversation, which counts as a failure too.
"""

import trio

from shardwright.daemon.failed_log_ins import FailedLogIns
from shardwright.daemon.sidecar.log_in_attempts import SASL_CONTINUE, SASL_START, Attempt
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection


class Guesses:
    """Delays for the proofs of clients that have failed before."""

    def __init__(self) -> None:
        self._failed = FailedLogIns()

    async def wait(self, client: ClientConnection, upstream: Upstream, request: Request) -> None:
        """Record the user at the start of a log-in; wait before a proof is forwarded."""
        attempt = Attempt.of(request)
        if attempt is not None:
            upstream.attempt = attempt.user
        elif request.name == SASL_CONTINUE and upstream.attempt is not None and not upstream.attempt.is_internal:
            await trio.sleep(self._failed.delay_seconds(upstream.attempt, _address(client)))

    def note(self, client: ClientConnection, upstream: Upstream, request: Request, *, has_failed: bool) -> None:
        """Record the outcome of a log-in step."""
        if upstream.attempt is None or request.name not in (SASL_START, SASL_CONTINUE):
            return
        if has_failed:
            self._failed.note(upstream.attempt, _address(client))
            upstream.attempt = None
        elif request.name == SASL_CONTINUE:
            self._failed.forget(upstream.attempt, _address(client))


def _address(client: ClientConnection) -> str | None:
    return None if client.peer_address is None else client.peer_address[0]
