"""Evaluation of a user's privileges: those that cover a resource, and the actions they allow. Pure.

MongoDB reports the privileges of a user with all inherited ones, so this needs no roles.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

ANY_ACTION: Final = "anyAction"

KEPT_APART: Final = frozenset({"local", "config"})
"""Databases that privileges on all databases exclude."""

_BUCKETS: Final = "system.buckets."


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource of an action.

    Attributes:
        db: a database; empty for all databases.
        collection: a collection of it; None for the database itself.
        is_cluster: whether it is the cluster; the other two are empty then.
    """

    db: str = ""
    collection: str | None = None
    is_cluster: bool = False

    def patterns(self) -> Iterable[frozenset[tuple[str, Any]]]:
        """Yield the resources of privileges that include this one."""
        yield _pattern(anyResource=True)
        if self.is_cluster:
            yield _pattern(cluster=True)
            return
        collection = self.collection or ""
        if collection.startswith(_BUCKETS):
            yield from self._patterns_of_buckets(collection.removeprefix(_BUCKETS))
        yield _pattern(db=self.db, collection=collection)
        if self.collection is None:
            if self.db not in KEPT_APART:
                yield _pattern(db="", collection="")
            return
        yield _pattern(db="", collection=collection)
        if not self._is_special(collection):
            yield _pattern(db=self.db, collection="")
            if self.db not in KEPT_APART:
                yield _pattern(db="", collection="")

    def _is_special(self, collection: str) -> bool:
        """Whether privileges on the whole database exclude a collection."""
        return collection.startswith("system.") or (self.db == "local" and collection.startswith("replset."))

    def _patterns_of_buckets(self, name: str) -> Iterable[frozenset[tuple[str, Any]]]:
        for each in (name, ""):
            yield _pattern(db=self.db, system_buckets=each)
            yield _pattern(system_buckets=each)


CLUSTER: Final = Resource(is_cluster=True)
ANY: Final = Resource()
"""The resource of privileges on all databases."""


class Privileges:
    """The privileges of one user."""

    __slots__ = ("_actions",)

    def __init__(self, actions: Mapping[frozenset[tuple[str, Any]], frozenset[str]]) -> None:
        self._actions = actions

    @classmethod
    def from_documents(cls, privileges: Iterable[Mapping[str, Any]]) -> Self:
        """Read the privileges in a reply: ``[{resource: {db, collection}, actions: [action, …]}, …]``."""
        actions: dict[frozenset[tuple[str, Any]], frozenset[str]] = {}
        for privilege in privileges:
            pattern = frozenset(privilege["resource"].items())
            actions[pattern] = actions.get(pattern, frozenset()) | frozenset(privilege["actions"])
        return cls(actions)

    def allow(self, action: str, resource: Resource) -> bool:
        """Whether the privileges allow an action on a resource."""
        for pattern in resource.patterns():
            actions = self._actions.get(pattern)
            if actions is not None and (action in actions or ANY_ACTION in actions):
                return True
        return False

    def resources(self) -> Iterable[Mapping[str, Any]]:
        """Yield the resources on which the privileges allow anything, in the form of privileges."""
        return (dict(pattern) for pattern, actions in self._actions.items() if actions)


NO_PRIVILEGES: Final = Privileges({})


def _pattern(**fields: str | bool) -> frozenset[tuple[str, Any]]:
    return frozenset(fields.items())
