"""The connection strings with which the servers of a cluster identify each other, MongoDB's ``ConnectionString``.

Drivers' URIs (``mongodb://…``) are something else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import DEFAULT_PORT, HostAndPort

_MIRRORED_CONFIG_SERVERS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A replica set and some of its members, or a lone server.

    Attributes:
        set_name: the name of the replica set; empty for a lone server.
        hosts: members of the set, or the server.
    """

    set_name: str
    hosts: tuple[HostAndPort, ...]

    @classmethod
    def parse(cls, text: str, *, default_port: int | None = DEFAULT_PORT) -> "ConnectionString":
        """Parse ``set/host:port,host:port``, or the ``host:port`` or UNIX socket path of a lone server.

        Args:
            text: the text to parse.
            default_port: see `HostAndPort.parse`.

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
        """The connection string of a replica set with the given addresses.

        Raises:
            CommandError: FailedToParse, one is not a valid address.
        """
        return cls(set_name, tuple(map(HostAndPort.parse, addresses)))

    def __str__(self) -> str:
        """The format that `parse` accepts, with all ports."""
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


def _failed(message: str) -> CommandError:
    return CommandError(ErrorCode.FailedToParse, message)
