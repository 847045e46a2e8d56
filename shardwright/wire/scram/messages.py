"""The messages of a conversation: parsing and building.

Names are sent as they are, with ``=`` and ``,`` escaped: MongoDB prepares passwords, not names. Channel binding and
authorisation identities are not supported, as in MongoDB.
"""

from base64 import b64decode, b64encode
from binascii import Error
from dataclasses import dataclass
from typing import Final, Self

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
