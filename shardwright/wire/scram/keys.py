"""The two mechanisms, the keys that they derive from a password, and what a server stores of them."""

import hmac
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import new, pbkdf2_hmac
from typing import Any, Final, Self


class Mechanism(Enum):
    """A mechanism by its name in SASL. The hash function has the name that `hashlib` gives it."""

    SHA_1 = "SCRAM-SHA-1"
    SHA_256 = "SCRAM-SHA-256"

    @property
    def hash_name(self) -> str:
        """The name of its hash function."""
        return "sha1" if self is Mechanism.SHA_1 else "sha256"

    @property
    def salt_bytes(self) -> int:
        """The length of MongoDB's salts: with the four bytes of PBKDF2's block number they fill one hash."""
        return self.key_bytes - 4

    @property
    def key_bytes(self) -> int:
        """The length of its keys."""
        return new(self.hash_name).digest_size

    @property
    def iterations(self) -> int:
        """MongoDB's default number of iterations (``scramIterationCount``, ``scramSHA256IterationCount``)."""
        return 10_000 if self is Mechanism.SHA_1 else 15_000

    def hash(self, data: bytes) -> bytes:
        """``H``."""
        return new(self.hash_name, data).digest()

    def mac(self, key: bytes, data: bytes) -> bytes:
        """``HMAC``."""
        return hmac.digest(key, data, self.hash_name)


MECHANISMS: Final = {mechanism.value: mechanism for mechanism in Mechanism}
"""The mechanisms by name."""


@dataclass(frozen=True, slots=True, repr=False)
class ScramKeys:
    """The keys derived from a password and a salt. Secret: the client's key suffices to authenticate.

    Attributes:
        mechanism: of the keys.
        client: with it a client proves that it knows the password.
        server: with it a server proves that it knows the user.
    """

    mechanism: Mechanism
    client: bytes
    server: bytes

    @classmethod
    def derive(cls, mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> Self:
        """The keys of a password, which takes time in proportion to the iterations.

        Args:
            mechanism: decides about the hash function.
            password: prepared as the mechanism demands.
            salt: of the user.
            iterations: of the user.
        """
        salted = pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)
        return cls(mechanism, mechanism.mac(salted, b"Client Key"), mechanism.mac(salted, b"Server Key"))


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a server knows of a user's password: enough to verify a proof, not to make one.

    Attributes:
        mechanism: for which they are.
        salt: public.
        iterations: public.
        stored_key: the hash of the client's key.
        server_key: the server's key.
    """

    mechanism: Mechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of_password(cls, mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> Self:
        """The credentials of a password; see `ScramKeys.derive`."""
        keys = ScramKeys.derive(mechanism, password, salt, iterations)
        return cls(mechanism, salt, iterations, mechanism.hash(keys.client), keys.server)

    @classmethod
    def from_document(cls, mechanism: Mechanism, document: Mapping[str, Any]) -> Self:
        """The credentials in a user's document (``credentials.<mechanism>``).

        Raises:
            KeyError, TypeError, ValueError: the document is malformed.
        """
        salt, stored, server = (b64decode(document[name], validate=True) for name in ("salt", "storedKey", "serverKey"))
        return cls(mechanism, salt, int(document["iterationCount"]), stored, server)
