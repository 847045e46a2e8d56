"""What a command needs: actions on resources. The vocabulary of the table in `command_needs`. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from shardwright.daemon.privileges import CLUSTER, Privileges, Resource
from shardwright.router.access.visible import may_see_database
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
class Anything:
    """Any action on anything in a database."""

    db: str

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges allow something there."""
        return may_see_database(privileges, self.db)


class Requirement(Protocol):
    """A need, or several of them in some combination."""

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges are enough."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several requirements."""

    requirements: tuple[Requirement, ...]

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges are enough for one of them."""
        return any(each.is_met(privileges) for each in self.requirements)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several requirements together."""

    requirements: tuple[Requirement, ...]

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges are enough for all of them."""
        return all(each.is_met(privileges) for each in self.requirements)


@dataclass(frozen=True, slots=True)
class OfThoseWho:
    """What only those need who have a privilege: it would let them learn more than they may."""

    have: Need
    requirement: Requirement

    def is_met(self, privileges: Privileges) -> bool:
        """Whether privileges lack the one, or are enough."""
        return not self.have.is_met(privileges) or self.requirement.is_met(privileges)


Needs: TypeAlias = Iterable[Requirement]
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
