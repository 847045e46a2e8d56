"""Rewriting a mongod's hello for clients: each member has the address of its daemon. Pure functions."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.reply_times import TIMES

_ADDRESS_FIELDS: Final = ("primary", "me")
_ADDRESS_LIST_FIELDS: Final = ("hosts", "passives", "arbiters")

# Fields that change from one reply to the next although the topology is the same.
_VOLATILE_FIELDS: Final = frozenset({"topologyVersion", "localTime", "lastWrite", "connectionId", "ok", *TIMES})


def rewrite_hello(hello: Mapping[str, Any], sidecars: Mapping[str, str]) -> dict[str, Any]:
    """``hello`` with the addresses of mongods replaced by those of their daemons.

    A member whose daemon has not registered yet is left out: clients must never learn the address of a mongod.

    Args:
        hello: a mongod's reply to hello or isMaster.
        sidecars: the address of each daemon, by the address of its mongod.
    """
    seen: dict[str, Any] = {}
    for field, value in hello.items():
        if field in _ADDRESS_FIELDS:
            if value in sidecars:
                seen[field] = sidecars[value]
        elif field in _ADDRESS_LIST_FIELDS:
            known = [sidecars[address] for address in value if address in sidecars]
            if known:
                seen[field] = known
        else:
            seen[field] = value
    return seen


def topology_of(hello: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a hello reply whose change clients wait for."""
    return {field: value for field, value in hello.items() if field not in _VOLATILE_FIELDS}


def unmapped_members(hello: Mapping[str, Any], sidecars: Mapping[str, str]) -> set[str]:
    """The mongods of the set whose daemons are not known."""
    return {address for field in _ADDRESS_LIST_FIELDS for address in hello.get(field, ()) if address not in sidecars}


def election_term(hello: Mapping[str, Any]) -> int:
    """The term in which a primary was elected: the low half of its ``electionId``."""
    return int.from_bytes(hello["electionId"].binary[4:], "big")
