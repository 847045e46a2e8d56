"""The client's side of a conversation."""

import hmac
from base64 import b64encode
from typing import Final

from shardwright.wire.scram.keys import ScramKeys
from shardwright.wire.scram.messages import ClientFinal, ClientFirst, ScramError, ServerFirst, auth_message

ITERATIONS_MIN: Final = 4096
"""Minimum for a server to be trusted (RFC 7677); fewer iterations would make the proof too easy to attack."""

ITERATIONS_MAX: Final = 1_000_000
"""Maximum for a server to be trusted; more iterations would keep this process busy."""


class ClientConversation:
    """Proof to a server that this side knows a password, and verification that the server knows it too."""

    def __init__(self, user: str, nonce: bytes) -> None:
        self._first = ClientFirst(user, nonce)
        self._signature = b""

    @property
    def first(self) -> bytes:
        """The first message."""
        return self._first.message

    def read(self, message: bytes) -> ServerFirst:
        """Parse the server's first message; raise ScramError also for an unacceptable number of iterations."""
        reply = ServerFirst.parse(message)
        if not reply.nonce.startswith(self._first.nonce) or len(reply.nonce) == len(self._first.nonce):
            raise ScramError("the server's nonce does not extend the client's")
        if not ITERATIONS_MIN <= reply.iterations <= ITERATIONS_MAX:
            raise ScramError(f"the server asks for {reply.iterations} iterations")
        return reply

    def prove(self, reply: ServerFirst, keys: ScramKeys) -> bytes:
        """Build the last message, with the proof; ``keys`` are for the salt and the iterations in ``reply``."""
        mechanism, final = keys.mechanism, ClientFinal(reply.nonce)
        proven = auth_message(self._first, reply, final)
        signature = mechanism.mac(mechanism.hash(keys.client), proven)
        proof = bytes(one ^ other for one, other in zip(keys.client, signature, strict=True))
        self._signature = mechanism.mac(keys.server, proven)
        return ClientFinal(reply.nonce, proof).message

    def verify(self, message: bytes) -> None:
        """Check the server's own proof, before any other use of the connection; raise ScramError if it is wrong."""
        if not self._signature or not hmac.compare_digest(message, b"v=" + b64encode(self._signature)):
            raise ScramError("the server does not know the password")
