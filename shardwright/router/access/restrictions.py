"""From where a user may connect: the ``authenticationRestrictions`` of the user and of its roles. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final, Self, TypeAlias

Addresses: TypeAlias = tuple[str | None, str | None]
"""Of a client, and of the server that it has connected to; None on a UNIX socket."""

NO_ADDRESSES: Final[Addresses] = (None, None)

_Alternatives = Sequence[Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Of each list, one restriction has to be met in full.

    Attributes:
        lists: the user's list, and that of each role; empty ones restrict nothing.
    """

    lists: Sequence[_Alternatives]

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The restrictions in a reply to ``usersInfo``."""
        inherited = document.get("inheritedAuthenticationRestrictions", [])
        return cls([each for each in (document.get("authenticationRestrictions", []), *inherited) if each])

    def are_met(self, addresses: Addresses) -> bool:
        """Whether a connection meets them; one without addresses meets none."""
        client, server = addresses
        return all(any(_is_met(each, client, server) for each in alternatives) for alternatives in self.lists)


def _is_met(restriction: Mapping[str, Sequence[str]], client: str | None, server: str | None) -> bool:
    sides = {"clientSource": client, "serverAddress": server}
    return all(name in sides and _is_in(sides[name], networks) for name, networks in restriction.items())


def _is_in(address: str | None, networks: Sequence[str]) -> bool:
    return address is not None and any(ip_address(address) in ip_network(network, strict=False) for network in networks)
