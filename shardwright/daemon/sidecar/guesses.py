"""Guessing passwords at a sidecar is as slow as at a router, although the mongod behind it verifies them.

The mongod refuses a user whom it does not know at the first step of a conversation, which counts as a failure too.
"""

from base64 import b64decode
from binascii import Error
from collections.abc import Mapping
from typing import Any, Final

import trio

from shardwright.daemon.failed_log_ins import FailedLogIns
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.daemon.user_names import UserName
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.request import Request
from shardwright.wire.scram.messages import ClientFirst, ScramError
from shardwright.wire.transport.client_connection import ClientConnection

_SPECULATIVE: Final = b"speculativeAuthenticate"
_START: Final = "saslStart"
_CONTINUE: Final = "saslContinue"


class Guesses:
    """Delays the proofs of those who have failed before."""

    def __init__(self) -> None:
        self._failed = FailedLogIns()

    async def wait(self, client: ClientConnection, upstream: Upstream, request: Request) -> None:
        """Note who begins to log in; wait before a proof is passed on."""
        if request.name == _START:
            upstream.attempt = _user_of(request.document, request.db)
        elif request.name in HELLO_NAMES and _SPECULATIVE in request.fields:
            speculative = request.get(_SPECULATIVE)
            if isinstance(speculative, Mapping) and _START in speculative:
                upstream.attempt = _user_of(speculative, str(speculative.get("db")))
        elif request.name == _CONTINUE and upstream.attempt is not None and not upstream.attempt.is_internal:
            await trio.sleep(self._failed.delay_seconds(upstream.attempt, _address(client)))

    def note(self, client: ClientConnection, upstream: Upstream, request: Request, *, has_failed: bool) -> None:
        """Note how a step of a log-in has ended."""
        if upstream.attempt is None or request.name not in (_START, _CONTINUE):
            return
        if has_failed:
            self._failed.note(upstream.attempt, _address(client))
            upstream.attempt = None
        elif request.name == _CONTINUE:
            self._failed.forget(upstream.attempt, _address(client))


def _user_of(start: Mapping[str, Any], db: str) -> UserName | None:
    """Who begins a conversation by SCRAM; None if the mongod will refuse the message."""
    payload = start.get("payload")
    try:
        message = b64decode(payload, validate=True) if isinstance(payload, str) else payload
        return UserName(ClientFirst.parse(message).user, db) if isinstance(message, bytes) else None
    except (Error, ValueError, ScramError):
        return None


def _address(client: ClientConnection) -> str | None:
    return None if client.peer_address is None else client.peer_address[0]
