"""The feature version of a cluster: the formats and internal commands that its daemons may use. Pure rules.

Daemons of two successive releases run side by side, in any order of upgrade, until someone finishes the upgrade on
purpose. This is MongoDB's ``featureCompatibilityVersion``, with a number of our own, because the mongods have theirs:

* Each release knows the versions from `OLDEST` to `NEWEST`. Whatever another daemon, or a daemon of the release before,
  must understand is used from a certain version on, and never earlier.
* The config servers keep the version in ``admin.system.version``, where a mongod keeps its own (`DOCUMENT_ID`). A new
  cluster has the newest one. A cluster without the document was created before there were feature versions: it has 1.
* A shard records the version in its own ``admin.system.version`` before it uses it. So the document names the newest
  format of the unfinished work in its ``config`` database, and can be read when the config servers are away.
* A shard or config daemon lists the versions that it knows among the ``extensions`` of its hello (`EXTENSIONS`), a
  router in its entry of ``config.mongos``. ``finishUpgrade`` raises the version once all daemons know the new one.
* A daemon that does not know the version of its cluster refuses to run (`refusal`). One that has not read the version
  yet uses 1, which every release that may be in the cluster can read.

A release that has something new to gate raises `NEWEST` by one and names the feature here. It may raise `OLDEST` to
the newest version of the release before.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from shardwright.sharding.document_fields import optional, required

OLDEST: Final = 1
NEWEST: Final = 2
"""The feature versions that this release knows."""

RECORDED_BY_SHARDS: Final = 2
"""From this version on, a shard records the version, which is the newest format of what it persists itself."""

DOCUMENT_ID: Final = "featureVersion"
"""The document in ``admin.system.version`` of the config servers, and of each shard."""

EXTENSIONS: Final = tuple(f"{DOCUMENT_ID}{version}" for version in range(OLDEST, NEWEST + 1))

_ROUTER_FIELD: Final = "featureVersions"


def query() -> dict[str, Any]:
    """The command that finds the document on the admin database of a config server."""
    return {"find": "system.version", "filter": {"_id": DOCUMENT_ID}, "readConcern": {"level": "majority"}}


def recording(version: int) -> dict[str, Any]:
    """The command that records the version on the admin database of a server; it never lowers it."""
    update = {"q": {"_id": DOCUMENT_ID}, "u": {"$max": {"version": version}}, "upsert": True}
    return {"update": "system.version", "updates": [update], "writeConcern": {"w": "majority"}}


def version_of(document: Mapping[str, Any] | None) -> int:
    """The feature version in the config servers' document; 1 if there is none.

    Raises:
        CommandError: NoSuchKey or TypeMismatch, the document is malformed.
    """
    return OLDEST if document is None else required(document, "version", int)


def refusal(version: int) -> str | None:
    """The reason why a daemon of this release must not run in a cluster; None if it may.

    Args:
        version: the cluster's feature version.
    """
    known = f"the feature version of the cluster is {version}, and this daemon knows {OLDEST} to {NEWEST}"
    if version > NEWEST:
        return f"{known}: install the newer release with which the upgrade of the cluster was finished"
    if version < OLDEST:
        return f"{known}: install the release before this one, and run `shardwright finish-upgrade` with it"
    return None


def knows(extensions: Collection[str], version: int) -> bool:
    """Whether a daemon knows a feature version.

    Args:
        extensions: those in its hello. A daemon that lists no versions is older than they are: it knows 1.
        version: the feature version.
    """
    listed = [each for each in extensions if each.startswith(DOCUMENT_ID)]
    return f"{DOCUMENT_ID}{version}" in listed if listed else version == 1


def router_fields(created: datetime) -> dict[str, Any]:
    """The fields with which a router's entry in ``config.mongos`` says what it knows.

    Args:
        created: the time in the entry at which the router was started. An older router that is started again at the
            same address leaves these fields as they are, so they are valid together with that time only.
    """
    return {_ROUTER_FIELD: {"oldest": OLDEST, "newest": NEWEST, "created": created}}


def router_knows(entry: Mapping[str, Any], version: int) -> bool:
    """Whether a router knows a feature version.

    Args:
        entry: its entry in ``config.mongos``.
        version: the feature version.

    Raises:
        CommandError: NoSuchKey or TypeMismatch, the entry is malformed.
    """
    fields = optional(entry, _ROUTER_FIELD, Mapping)
    if fields is None or fields.get("created") != entry.get("created"):
        return version == 1
    oldest: int = required(fields, "oldest", int)
    newest: int = required(fields, "newest", int)
    return oldest <= version <= newest
