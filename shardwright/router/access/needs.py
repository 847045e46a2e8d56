"""Requirements of commands: actions on resources, the vocabulary of the table in `command_needs`. Pure.

Users list and kill their own operations and sessions without a privilege. Lists of databases and collections show a
user only those on which it may do anything.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from bson import Binary, Decimal128
from bson.regex import Regex

from shardwright.daemon.users import CLUSTER, KEPT_APART, Privileges, Resource, UserName
from shardwright.wire.rawbson import ARRAY, WholeDocument, decode_document, encode_document
from shardwright.wire.request import Request, with_stages

_SYSTEM: Final = "system."
_BUCKETS: Final = "system.buckets."


def may_see_database(privileges: Privileges, db: str) -> bool:
    """Whether a user may do anything in a database."""
    return any(_touches(resource, db) for resource in privileges.resources())


def visible_collections(privileges: Privileges, db: str) -> dict[str, Any]:
    """Return the ``listCollections`` filter for the collections on which a user may do anything."""
    names: set[str] = set()
    found: list[dict[str, Any]] = []
    for resource in privileges.resources():
        if resource.get("anyResource"):
            return {}
        if not _touches(resource, db):
            continue
        collection, buckets = resource.get("collection"), resource.get("system_buckets")
        if collection:
            names.add(collection)
        elif collection is not None:
            found.append({"name": {"$not": Regex(f"^{re.escape(_SYSTEM)}")}})
        elif buckets:
            names.add(_BUCKETS + buckets)
        else:
            found.append({"name": Regex(f"^{re.escape(_BUCKETS)}")})
    return {"$or": [{"name": {"$in": sorted(names)}}, *found]}


def _touches(resource: Mapping[str, Any], db: str) -> bool:
    """Whether a privilege's resource includes something in a database."""
    if resource.get("anyResource"):
        return True
    if "collection" not in resource and "system_buckets" not in resource:
        return False  # the cluster
    named = resource.get("db", "")
    if named:
        return bool(named == db)
    return db not in KEPT_APART or bool(resource.get("collection"))


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
        """Whether privileges allow any action in the database."""
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
    """Extra requirement for users who hold the privilege `have` and could otherwise see too much."""

    have: Need
    requirement: Requirement

    def is_met(self, privileges: Privileges) -> bool:
        """Whether the privileges lack `have`, or also meet the requirement."""
        return not self.have.is_met(privileges) or self.requirement.is_met(privileges)


Needs: TypeAlias = Iterable[Requirement]
Row: TypeAlias = Callable[[Request], Needs]
"""Function from a request to its needs. It raises CommandError for arguments that the command would refuse too."""


def nothing(_: Request) -> Needs:
    """Return no needs: every user may run the command, or the command itself checks ownership."""
    return ()


def on_cluster(*actions: str) -> Row:
    """Require actions on the cluster."""
    return lambda _: [Need(action, CLUSTER) for action in actions]


def on_database(*actions: str) -> Row:
    """Require actions on the request's database."""
    return lambda request: [Need(action, Resource(request.db)) for action in actions]


def on_collection(*actions: str) -> Row:
    """Require actions on the collection that the command's first field names."""
    return lambda request: [Need(action, Resource(request.db, request.collection)) for action in actions]


def on_full_name(*actions: str) -> Row:
    """Require actions on the collection whose full name, with its database, is in the first field."""

    def needs(request: Request) -> Needs:
        db, _, collection = request.collection.partition(".")
        return [Need(action, Resource(db, collection)) for action in actions]

    return needs


def on_named_database(*actions: str) -> Row:
    """Require actions on the database that the first field names."""
    return lambda request: [Need(action, Resource(request.collection)) for action in actions]


TO_END_OTHERS: Final = Need("killop", CLUSTER)
"""Privilege required to kill operations of other users."""

_CURRENT_OP: Final = "$currentOp"
_PIPELINE: Final = b"pipeline"


def shows_own_alone(argument: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    """Whether a ``$currentOp`` shows only the user's own operations on the router.

    Args:
        argument: its specification, with all its fields.
    """
    if not isinstance(argument, Mapping) or (isinstance(argument, WholeDocument) and argument.repeated):
        return False
    return argument.get("localOps") is True and not argument.get("allUsers")


def kill_op_needs(request: Request) -> Needs:
    """Return the row of ``killOp``. For an operation of this router, the command itself checks the owner."""
    opid = request.get(b"op")
    is_local = isinstance(opid, int | float | Decimal128) and not isinstance(opid, bool)
    return () if is_local else [TO_END_OTHERS]


def of_user(user: UserName) -> dict[str, Any]:
    """Return the stage that keeps a user's operations among the operations of a shard."""
    return {"$match": {"lsid.uid": Binary(user.digest)}}


def with_own_operations(request: Request, user: UserName) -> Request:
    """Add a stage that keeps only the user's operations, unless a ``$currentOp`` shows all users or is local.

    Args:
        request: an ``aggregate``.
    """
    span = request.fields.get(_PIPELINE)
    if span is None or span[0] != ARRAY or _CURRENT_OP.encode() not in request.body:
        return request
    stages = request.documents(_PIPELINE)
    first = decode_document(stages[0]) if stages else {}
    argument = first.get(_CURRENT_OP)
    if not isinstance(argument, Mapping) or argument.get("allUsers") is True or argument.get("localOps") is True:
        return request
    return request.with_body(with_stages(request.body, [stages[0], encode_document(of_user(user)), *stages[1:]]))


LISTS_OF_SESSIONS: Final = ("$listLocalSessions", "$listSessions")
"""Stages that list sessions."""

_MARK: Final = b"Sessions"


def names_others(argument: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    """Whether a stage of `LISTS_OF_SESSIONS` may list sessions of other users; by default it lists one's own."""
    return not isinstance(argument, Mapping) or bool(argument.get("users") or argument.get("allUsers"))


def with_own_sessions(request: Request, user: UserName) -> Request:
    """Add the user's name to a leading session list stage that lists only the user's own sessions.

    Args:
        request: an ``aggregate``.
    """
    span = request.fields.get(_PIPELINE)
    if span is None or span[0] != ARRAY or _MARK not in request.body:
        return request
    stages = request.documents(_PIPELINE)
    first = decode_document(stages[0]) if stages else {}
    name = next(iter(first), "")
    if name not in LISTS_OF_SESSIONS or names_others(first[name]):
        return request
    own = encode_document({name: {"users": [user.to_document()]}})
    return request.with_body(with_stages(request.body, [own, *stages[1:]]))
