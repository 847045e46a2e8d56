"""Log-ins with a shared key, by which processes of a cluster recognise each other (`wire.transport.cluster_auth`).

During a rotation there are two keys; the second is tried where the first is refused.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import trio
from bson.binary import Binary

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.scram.client import ClientConversation
from shardwright.wire.scram.keys import ScramKeys
from shardwright.wire.scram.messages import ScramError, ServerFirst
from shardwright.wire.scram.system_user import SYSTEM_DATABASE, SYSTEM_MECHANISM, SYSTEM_USER

_NONCE_BYTES: Final = 24
_DERIVED_MAX: Final = 1_000
"""As servers keep their salts as long as they run, this many servers need no second derivation."""

RunCommand: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class ClusterKeys:
    """The keys of this process; there are none until `use` is called, once, at startup.

    Attributes:
        keys: the first is used first. Empty without a key file.
    """

    def __init__(self) -> None:
        self.keys: tuple[bytes, ...] = ()
        self._derived: dict[tuple[bytes, bytes, int], ScramKeys] = {}

    def use(self, keys: Sequence[str]) -> None:
        """Log in with these keys from now on."""
        self.keys = tuple(key.encode() for key in keys)

    async def log_in(self, run: RunCommand) -> None:
        """Log in on a connection, if there are keys. Nothing is trusted that the server sends before it is verified.

        Args:
            run: sends a command on the connection, given its database, and returns the reply.

        Raises:
            CommandError: AuthenticationFailed, the server refuses all keys, or does not know the one that it accepts.
            BackendError: the connection broke.
        """
        for number, key in enumerate(self.keys, start=1):
            try:
                await self._converse(run, key)
            except CommandError as error:
                if error.code != ErrorCode.AuthenticationFailed or number == len(self.keys):
                    raise
            except ScramError as error:
                raise CommandError(ErrorCode.AuthenticationFailed, f"cannot authenticate: {error}") from error
            else:
                return

    async def _converse(self, run: RunCommand, key: bytes) -> None:
        conversation = ClientConversation(SYSTEM_USER, secrets.token_urlsafe(_NONCE_BYTES).encode())
        start = {
            "saslStart": 1,
            "mechanism": SYSTEM_MECHANISM.value,
            "payload": Binary(conversation.first),
            "options": {"skipEmptyExchange": True},
        }
        answer = await run(SYSTEM_DATABASE, start)
        reply = conversation.read(_payload(answer))
        proof = conversation.prove(reply, await self._keys_for(key, reply))
        more = {"saslContinue": 1, "conversationId": answer.get("conversationId"), "payload": Binary(proof)}
        answer = await run(SYSTEM_DATABASE, more)
        conversation.verify(_payload(answer))
        if answer.get("done") is not True:
            raise ScramError("the server does not end the conversation")

    async def _keys_for(self, key: bytes, reply: ServerFirst) -> ScramKeys:
        wanted = (key, reply.salt, reply.iterations)
        derived = self._derived.get(wanted)
        if derived is None:
            derived = await trio.to_thread.run_sync(ScramKeys.derive, SYSTEM_MECHANISM, *wanted)
            if len(self._derived) >= _DERIVED_MAX:
                self._derived.clear()
            self._derived[wanted] = derived
        return derived


def _payload(answer: Mapping[str, Any]) -> bytes:
    payload = answer.get("payload")
    if not isinstance(payload, bytes):
        raise ScramError("the server's payload is not binary")
    return payload
