"""SCRAM (RFC 5802, RFC 7677), which proves to both client and server that the other side knows a password.

Bytes in, values out: no sockets, no clock, no randomness. Nonces are arguments: random, printable and without commas.
The cryptography is `hashlib`'s and `hmac`'s. First come the keys, then the messages, then the client's and the server's
side of a conversation. A malformed message, or one of another conversation, raises ScramError.

Names are sent as they are, with ``=`` and ``,`` escaped: MongoDB prepares passwords, not names. Channel binding and
authorisation identities are not supported, as in MongoDB.
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import new, pbkdf2_hmac
from typing import Any, Final, Self


class Mechanism(Enum):
    """A mechanism by its name in SASL."""

    SHA_1 = "SCRAM-SHA-1"
    SHA_256 = "SCRAM-SHA-256"

    @property
    def hash_name(self) -> str:
        """Name of its hash function in `hashlib`."""
        return "sha1" if self is Mechanism.SHA_1 else "sha256"

    @property
    def salt_bytes(self) -> int:
        """Length of MongoDB's salts: with the four bytes of PBKDF2's block number they fill one hash."""
        return self.key_bytes - 4

    @property
    def key_bytes(self) -> int:
        """Length of its keys."""
        return new(self.hash_name).digest_size

    @property
    def iterations(self) -> int:
        """MongoDB's default number of iterations (``scramIterationCount``, ``scramSHA256IterationCount``)."""
        return 10_000 if self is Mechanism.SHA_1 else 15_000

    def hash(self, data: bytes) -> bytes:
        """Compute ``H``."""
        return new(self.hash_name, data).digest()

    def mac(self, key: bytes, data: bytes) -> bytes:
        """Compute ``HMAC``."""
        return hmac.digest(key, data, self.hash_name)


MECHANISMS: Final = {mechanism.value: mechanism for mechanism in Mechanism}
"""The mechanisms by name."""


@dataclass(frozen=True, slots=True, repr=False)
class ScramKeys:
    """The keys derived from a password and a salt. Secret: the client's key suffices to authenticate.

    Attributes:
        client: proves that a client knows the password.
        server: proves that a server knows the user.
    """

    mechanism: Mechanism
    client: bytes
    server: bytes

    @classmethod
    def derive(cls, mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> Self:
        """Derive the keys of a password, prepared as the mechanism demands.

        Takes time in proportion to the iterations.
        """
        salted = pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)
        return cls(mechanism, mechanism.mac(salted, b"Client Key"), mechanism.mac(salted, b"Server Key"))


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """A server's credentials for a user: enough to verify a proof, not to make one.

    ``stored_key`` is the hash of the client's key.
    """

    mechanism: Mechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of_password(cls, mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> Self:
        """Derive the credentials of a password; see `ScramKeys.derive`."""
        keys = ScramKeys.derive(mechanism, password, salt, iterations)
        return cls(mechanism, salt, iterations, mechanism.hash(keys.client), keys.server)

    @classmethod
    def from_document(cls, mechanism: Mechanism, document: Mapping[str, Any]) -> Self:
        """Read the credentials in a user's document (``credentials.<mechanism>``).

        Raises KeyError, TypeError or ValueError if the document is malformed.
        """
        salt, stored, server = (b64decode(document[name], validate=True) for name in ("salt", "storedKey", "serverKey"))
        return cls(mechanism, salt, int(document["iterationCount"]), stored, server)


GS2_HEADER: Final = b"n,,"
"""Header without channel binding and without a separate authorisation identity."""

_CHANNEL: Final = b"c=" + b64encode(GS2_HEADER)
_ITERATIONS_DIGITS_MAX: Final = 9
MESSAGE_BYTES_MAX: Final = 64 * 1024
"""Longest accepted message. Names and nonces are far shorter."""


class ScramError(Exception):
    """A wrong proof, or a message that is not SCRAM."""


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """``n,,n=user,r=nonce``."""

    user: str
    nonce: bytes

    @property
    def bare(self) -> bytes:
        """The message without its header, as both proofs contain it."""
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        return b"n=" + name.encode() + b",r=" + self.nonce

    @property
    def message(self) -> bytes:
        """The whole message."""
        return GS2_HEADER + self.bare

    @classmethod
    def parse(cls, message: bytes) -> Self:
        """Parse a message."""
        if len(message) > MESSAGE_BYTES_MAX or not message.startswith(GS2_HEADER):
            raise ScramError("the first message does not begin as MongoDB's do")
        name, nonce = _attributes(message[len(GS2_HEADER) :], b"n", b"r")
        if not nonce:
            raise ScramError("the nonce is empty")
        try:
            text = name.decode()
        except UnicodeDecodeError as error:
            raise ScramError("the name is not text") from error
        parsed = cls(text.replace("=2C", ",").replace("=3D", "="), nonce)
        if parsed.message != message:
            raise ScramError("the name is not escaped as it must be")
        return parsed


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """``r=nonce,s=salt,i=iterations``; the nonce is the client's followed by the server's."""

    nonce: bytes
    salt: bytes
    iterations: int

    @property
    def message(self) -> bytes:
        """The whole message."""
        return b"r=" + self.nonce + b",s=" + b64encode(self.salt) + b",i=%d" % self.iterations

    @classmethod
    def parse(cls, message: bytes) -> Self:
        """Parse a message."""
        nonce, salt, iterations = _attributes(message, b"r", b"s", b"i")
        if not iterations.isdigit() or len(iterations) > _ITERATIONS_DIGITS_MAX:
            raise ScramError("the number of iterations is not a number")
        return cls(nonce, decoded(salt), int(iterations))


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """``c=biws,r=nonce,p=proof``, with the nonce of the server's message; ``proof`` is empty before it is computed."""

    nonce: bytes
    proof: bytes = b""

    @property
    def without_proof(self) -> bytes:
        """The part before the proof, which the proof covers."""
        return _CHANNEL + b",r=" + self.nonce

    @property
    def message(self) -> bytes:
        """The whole message."""
        return self.without_proof + b",p=" + b64encode(self.proof)

    @classmethod
    def parse(cls, message: bytes) -> Self:
        """Parse a message."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise ScramError("the message is too long")
        channel, nonce, proof = _attributes(message, b"c", b"r", b"p")
        if b"c=" + channel != _CHANNEL:
            raise ScramError("channel binding is not supported")
        return cls(nonce, decoded(proof))


def auth_message(first: ClientFirst, reply: ServerFirst, final: ClientFinal) -> bytes:
    """Return the text that both proofs sign."""
    return b",".join((first.bare, reply.message, final.without_proof))


def decoded(text: bytes) -> bytes:
    """Decode base64; raise ScramError if it is not base64."""
    try:
        return b64decode(text, validate=True)
    except Error as error:
        raise ScramError("not base64") from error


def _attributes(message: bytes, *names: bytes) -> list[bytes]:
    """Return the values of exactly these attributes, in this order."""
    parts = message.split(b",")
    if len(parts) != len(names) or any(
        not part.startswith(name + b"=") for part, name in zip(parts, names, strict=True)
    ):
        raise ScramError("the message does not have the attributes that it must have")
    return [part[2:] for part in parts]


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


SYSTEM_USER: Final = "__system"
SYSTEM_DATABASE: Final = "local"
SYSTEM_MECHANISM: Final = Mechanism.SHA_256
"""The only mechanism. The password is the key itself, without the hash that MongoDB applies for SCRAM-SHA-1."""
