"""What a command needs: actions on resources. The vocabulary of the table in `command_needs`. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from shardwright.daemon.privileges import CLUSTER, Privileges, Resource
from shardwright.wire.request import Request


@dataclass(frozen=True, slots=True)
class Need:
    """One action on one resource."""

    action: str
    resource: Resource

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges allow the action."""
        return privileges.allow(self.action, self.resource)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several needs."""

    needs: tuple[Need, ...]

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges allow one of the actions."""
        return any(need.is_met(privileges) for need in self.needs)


Needs: TypeAlias = Iterable[Need | AnyOf]
Row: TypeAlias = Callable[[Request], Needs]
"""What a request needs. It raises CommandError for arguments that the command would refuse too."""


def nothing(_: Request) -> Needs:
    """For commands that every user may run, or that decide by themselves what is the user's own."""
    return ()


def on_cluster(*actions: str) -> Row:
    """Actions on the cluster."""
    return lambda _: [Need(action, CLUSTER) for action in actions]


def on_database(*actions: str) -> Row:
    """Actions on the request's database."""
    return lambda request: [Need(action, Resource(request.db)) for action in actions]


def on_collection(*actions: str) -> Row:
    """Actions on the collection that the command's first field names."""
    return lambda request: [Need(action, Resource(request.db, request.collection)) for action in actions]


def on_full_name(*actions: str) -> Row:
    """Actions on the collection that the first field names with its database."""

    def needs(request: Request) -> Needs:
        db, _, collection = request.collection.partition(".")
        return [Need(action, Resource(db, collection)) for action in actions]

    return needs


def on_named_database(*actions: str) -> Row:
    """Actions on the database that the first field names."""
    return lambda request: [Need(action, Resource(request.collection)) for action in actions]
