"""Server addresses and replica set connection strings, like MongoDB's ``HostAndPort`` and ``ConnectionString``.

Not drivers' URIs (``mongodb://…``).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

DEFAULT_PORT: Final = 27017
PORT_MAX: Final = 65535

_DIGITS: Final = frozenset("0123456789")
_INT32: Final = range(-(2**31), 2**31)
_DIGITS_MAX: Final = 10
"""Longest number in `_INT32`."""


@dataclass(frozen=True, slots=True)
class HostAndPort:
    """A server.

    Attributes:
        host: its name or address (IPv6 without brackets), or the path of its UNIX socket.
        port: its TCP port; 0 for a UNIX socket.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = DEFAULT_PORT) -> "HostAndPort":
        """Parse ``host:port``, ``[ipv6]:port``, the same without a port, or the path of a UNIX socket.

        Args:
            default_port: the port if the text has none; None makes a port mandatory.

        Raises:
            CommandError: FailedToParse or Overflow, with mongod's message.
        """
        host, port_text = _split_ipv6(text) if "[" in text else _split(text)
        if not host:
            raise _failed(f"Empty host component parsing HostAndPort from {_quoted(text)}")
        port = default_port if port_text is None else _parse_port(port_text, text)
        if "/" in host:
            return cls(host, 0)
        if port is None:
            raise _failed(f"No port in {_quoted(text)}")
        return cls(host, port)

    def __str__(self) -> str:
        """Return ``host:port``, with brackets around an IPv6 address, or the path of a UNIX socket."""
        if "/" in self.host:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_localhost(self) -> bool:
        """Whether the address means a different server on each machine."""
        return self.host in ("localhost", "::1") or self.host.startswith(("127.", "/"))


def _split(text: str) -> tuple[str, str | None]:
    if "]" in text:
        raise _failed(f"']' present without '[' in {text}")
    host, colon, port = text.partition(":")
    if ":" in port:
        raise _failed(
            f"More than one ':' detected. If this is an ipv6 address, it needs to be surrounded by '[' and ']'; {text}"
        )
    return host, port if colon else None


def _split_ipv6(text: str) -> tuple[str, str | None]:
    before, _, rest = text.partition("[")
    if before:
        raise _failed(f"'[' present, but not first character in {text}")
    host, bracket, after = rest.partition("]")
    if not bracket:
        raise _failed(f"ipv6 address is missing closing ']' in hostname in {text}")
    junk, colon, port = after.rpartition(":")
    if not colon and ":" in host:
        if after:
            raise _failed(f"missing colon after ']' before the port in {text}")
        return host, None
    if junk or not colon:
        raise _failed(f"Extraneous characters between ']' and pre-port ':' in {text}")
    return host, port


def _parse_port(digits: str, text: str) -> int:
    """Parse a port like MongoDB's ``NumberParser``."""
    magnitude = digits[1:] if digits[:1] in ("+", "-") else digits
    if not magnitude:
        raise _failed("No digits")
    if not _DIGITS.issuperset(magnitude):
        raise _failed("Did not consume whole string.")
    if len(magnitude.lstrip("0")) > _DIGITS_MAX or int(digits) not in _INT32:
        raise CommandError(ErrorCode.Overflow, "Overflow")
    port = int(digits)
    if not 0 < port <= PORT_MAX:
        raise _failed(f"Port number {port} out of range parsing HostAndPort from {_quoted(text)}")
    return port


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _failed(message: str) -> CommandError:
    return CommandError(ErrorCode.FailedToParse, message)


_MIRRORED_CONFIG_SERVERS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A replica set and some of its members, or a lone server with an empty ``set_name``."""

    set_name: str
    hosts: tuple[HostAndPort, ...]

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = DEFAULT_PORT) -> "ConnectionString":
        """Parse ``set/host:port,host:port``, or the ``host:port`` or UNIX socket path of a lone server.

        Raises:
            CommandError: FailedToParse or Overflow, with mongod's message.
        """
        set_name, slash, members = text.partition("/")
        if not (set_name and slash):  # the path of a UNIX socket begins with the slash
            _check_is_one_host(text)
            return cls("", (HostAndPort.parse(text, default_port=default_port),))
        # mongod splits off the set's name twice, so a member cannot have a UNIX socket.
        before, second_slash, after = members.partition("/")
        listed = (after if second_slash else before).split(",")
        hosts = tuple(HostAndPort.parse(each, default_port=default_port) for each in listed)
        if second_slash:
            raise _failed("Must specify set name for replica set ConnectionStrings")
        return cls(set_name, hosts)

    @classmethod
    def of_set(cls, set_name: str, addresses: Iterable[str]) -> "ConnectionString":
        """Build the connection string of a replica set; raise FailedToParse for an invalid address."""
        return cls(set_name, tuple(map(HostAndPort.parse, addresses)))

    def __str__(self) -> str:
        """Return the format that `parse` accepts, with all ports."""
        joined = ",".join(self.addresses)
        return f"{self.set_name}/{joined}" if self.set_name else joined

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hosts as ``host:port``."""
        return tuple(map(str, self.hosts))


def _check_is_one_host(text: str) -> None:
    hosts = text.count(",") + 1
    if hosts == _MIRRORED_CONFIG_SERVERS:  # as in MongoDB before its config servers were a replica set
        raise _failed(
            "mirrored config server connections are not supported; for config server replica sets be sure to use the "
            "replica set connection string"
        )
    if hosts > 1:
        raise _failed(f"invalid url [{text}]")
