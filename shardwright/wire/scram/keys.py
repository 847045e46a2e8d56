"""The two mechanisms, the keys that they derive from a password, and the credentials that a server stores."""

import hmac
from base64 import b64decode
from collections.abc import Mapping
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
