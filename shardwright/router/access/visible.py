"""What lists of databases and collections show to a user: those on which it may do anything at all. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from bson.regex import Regex

from shardwright.daemon.privileges import KEPT_APART, Privileges

_SYSTEM: Final = "system."
_BUCKETS: Final = "system.buckets."


def may_see_database(privileges: Privileges, db: str) -> bool:
    """Whether a user may do anything in a database."""
    return any(_touches(resource, db) for resource in privileges.resources())


def visible_collections(privileges: Privileges, db: str) -> dict[str, Any]:
    """The query on ``listCollections`` that finds the collections of a database on which a user may do anything."""
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
    """Whether a resource of a privilege has something in a database."""
    if resource.get("anyResource"):
        return True
    if "collection" not in resource and "system_buckets" not in resource:
        return False  # the cluster
    named = resource.get("db", "")
    if named:
        return bool(named == db)
    return db not in KEPT_APART or bool(resource.get("collection"))
