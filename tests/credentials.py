"""Credentials of a client for a process of a closed cluster: its name, its password, and the files for TLS."""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from shardwright.wire.scram import ClientConversation, Mechanism, ScramKeys

NO_TLS: Final[Mapping[str, str]] = {}
EXTERNAL: Final = "$external"


@dataclass(frozen=True)
class Credentials:
    """A user, and the files that secure the connection.

    Attributes:
        user: a name; empty without a log-in.
        password: of the user.
        database: of the user; `EXTERNAL` for a log-in with the certificate.
        tls: the field ``tls`` of ``up --json``; empty without TLS.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    tls: Mapping[str, str] = field(default_factory=lambda: NO_TLS)

    @property
    def options(self) -> dict[str, Any]:
        """The options of a MongoClient."""
        return {**self._log_in, **self.tls_options}

    @property
    def tls_options(self) -> dict[str, Any]:
        """The client options for TLS alone."""
        if not self.tls:
            return {}
        return {
            "tls": True,
            "tlsCAFile": self.tls["caFile"],
            "tlsCertificateKeyFile": self.tls["clientCertificateFile"],
        }

    @property
    def tls_words(self) -> str:
        """The options for TLS, as a part of a connection string."""
        return urlencode({**self.tls_options, "tls": "true"}) if self.tls else ""

    def uri(self, hosts: str, **options: str) -> str:
        """A connection string for clients that are given nothing else.

        Args:
            hosts: ``host:port,…``.
            options: further ones of the connection string.
        """
        name = f"{quote_plus(self.user)}:{quote_plus(self.password)}@" if self.user else ""
        source = {"authSource": self.database} if self.user else {}
        query = "&".join(part for part in (urlencode({**source, **options}), self.tls_words) if part)
        return f"mongodb://{name}{hosts}/{'?' if query else ''}{query}"

    def secured(self, plain: socket.socket, host: str) -> socket.socket:
        """The connection after the handshake of TLS; the same one without TLS."""
        if not self.tls:
            return plain
        context = _context(self.tls["caFile"], self.tls["clientCertificateFile"])
        return context.wrap_socket(plain, server_hostname=host)

    @property
    def _log_in(self) -> dict[str, Any]:
        if self.database == EXTERNAL:
            return {"authMechanism": "MONGODB-X509", "authSource": EXTERNAL}
        if not self.user:
            return {}
        return {
            "username": self.user,
            "password": self.password,
            "authSource": self.database,
            "authMechanism": "SCRAM-SHA-256",
        }


NOBODY: Final = Credentials()


class LogInMessages:
    """The two commands of a log-in by SCRAM-SHA-256, for connections without a driver."""

    def __init__(self, credentials: Credentials) -> None:
        self._password = credentials.password
        self._conversation = ClientConversation(credentials.user, b"n" * 24)

    def start(self) -> dict[str, Any]:
        """The first."""
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": self._conversation.first}
        return {**start, "options": {"skipEmptyExchange": True}}

    def go_on(self, payload: bytes) -> dict[str, Any]:
        """Return the second message, for the server's answer."""
        first = self._conversation.read(payload)
        keys = _keys(self._password, first.salt, first.iterations)
        return {"saslContinue": 1, "conversationId": 1, "payload": self._conversation.prove(first, keys)}


# As drivers do: it takes ten milliseconds, and some tests open a connection for each of their requests.
@lru_cache
def _keys(password: str, salt: bytes, iterations: int) -> ScramKeys:
    return ScramKeys.derive(Mechanism.SHA_256, password.encode(), salt, iterations)


@lru_cache
def _context(ca_file: str, client_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.load_cert_chain(client_file)
    return context
