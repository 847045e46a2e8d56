"""The server's side of a conversation."""

import hmac
from base64 import b64encode
from collections.abc import Sequence

from shardwright.wire.scram.keys import Credentials
from shardwright.wire.scram.messages import ClientFinal, ClientFirst, ScramError, ServerFirst, auth_message


class ServerConversation:
    """Verification that a client knows a password.

    ``credentials`` are alternatives with the same mechanism, salt and number of iterations. If empty, every proof is
    wrong. ``reply`` is the answer to the first message (`first_reply`).
    """

    def __init__(self, first: ClientFirst, credentials: Sequence[Credentials], reply: ServerFirst) -> None:
        self._first = first
        self._credentials = credentials
        self.reply = reply

    def finish(self, message: bytes) -> bytes:
        """Answer the client's last message, with the server's own proof; raise ScramError if the client's is wrong."""
        final = ClientFinal.parse(message)
        if not hmac.compare_digest(final.nonce, self.reply.nonce):
            raise ScramError("the nonce belongs to another conversation")
        proven = auth_message(self._first, self.reply, final)
        for credentials in self._credentials:
            if _is_proof_of(credentials, final.proof, proven):
                return b"v=" + b64encode(credentials.mechanism.mac(credentials.server_key, proven))
        raise ScramError("the proof is wrong")


def first_reply(first: ClientFirst, nonce: bytes, salt: bytes, iterations: int) -> ServerFirst:
    """Build the answer to the client's first message."""
    return ServerFirst(first.nonce + nonce, salt, iterations)


def _is_proof_of(credentials: Credentials, proof: bytes, proven: bytes) -> bool:
    mechanism = credentials.mechanism
    signature = mechanism.mac(credentials.stored_key, proven)
    if len(proof) != len(signature):
        return False
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    return hmac.compare_digest(mechanism.hash(client_key), credentials.stored_key)
