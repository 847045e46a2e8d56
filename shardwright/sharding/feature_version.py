"""The feature version of a cluster: the formats and internal commands that its daemons may use. Pure rules.

Daemons of two successive releases run side by side, in any order of upgrade, until an operator finishes the upgrade
explicitly. This is MongoDB's ``featureCompatibilityVersion``, with a number of our own, because the mongods have
theirs:

* Each release supports the versions from `OLDEST` to `NEWEST`. A format that another daemon, or a daemon of the
  previous release, must understand is used from a certain version on, and never earlier.
* The config servers keep the version in ``admin.system.version``, where a mongod keeps its own (`DOCUMENT_ID`). A new
  cluster has the newest one. A cluster without the document was created before there were feature versions: it has 1.
* A shard records the version in its own ``admin.system.version`` before it uses it. So the document names the newest
  format of the unfinished work in its ``config`` database, and can be read while the config servers are unavailable.
* A shard or config daemon lists its supported versions among the ``extensions`` of its hello (`EXTENSIONS`), a router
  in its entry of ``config.mongos``. ``finishUpgrade`` raises the version once all daemons support the new one.
* A daemon that does not support the version of its cluster refuses to run (`refusal`). One that has not read the
  version yet uses 1, which every release that may be in the cluster can read.

A release with a new gated feature raises `NEWEST` by one and names the feature here. It may raise `OLDEST` to the
newest version of the previous release.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from shardwright.sharding.document_fields import optional, required

OLDEST: Final = 1
NEWEST: Final = 2
"""The feature versions that this release supports."""

RECORDED_BY_SHARDS: Final = 2
"""Version from which on a shard records the version, which is the newest format of the data that it persists."""

DOCUMENT_ID: Final = "featureVersion"
"""Id of the document in ``admin.system.version`` of the config servers, and of each shard."""

_WITHOUT_DOCUMENT: Final = 1
EXTENSIONS: Final = tuple(f"{DOCUMENT_ID}{version}" for version in range(OLDEST, NEWEST + 1))

_ROUTER_FIELD: Final = "featureVersions"


def query() -> dict[str, Any]:
    """Build the command that finds the document, for the admin database of a config server."""
    return {"find": "system.version", "filter": {"_id": DOCUMENT_ID}, "readConcern": {"level": "majority"}}


def recording(version: int) -> dict[str, Any]:
    """Build the command that records the version, for the admin database of a server; it never lowers the version."""
    update = {"q": {"_id": DOCUMENT_ID}, "u": {"$max": {"version": version}}, "upsert": True}
    return {"update": "system.version", "updates": [update], "writeConcern": {"w": "majority"}}


def version_of(document: Mapping[str, Any] | None) -> int:
    """Return the feature version in the config servers' document.

    Without a document no upgrade was ever finished, so it is 1, also for a release that no longer supports that.

    Raises NoSuchKey or TypeMismatch if the document is malformed.
    """
    return _WITHOUT_DOCUMENT if document is None else required(document, "version", int)


def refusal(version: int) -> str | None:
    """Explain why a daemon of this release must not run in a cluster with this feature version; None if it may."""
    known = f"the feature version of the cluster is {version}, and this daemon knows {OLDEST} to {NEWEST}"
    if version > NEWEST:
        return f"{known}: install the newer release with which the upgrade of the cluster was finished"
    if version < OLDEST:
        return f"{known}: install the release before this one, and run `shardwright finish-upgrade` with it"
    return None


def knows(extensions: Collection[str], version: int) -> bool:
    """Whether a daemon supports a feature version, given the extensions in its hello.

    A daemon that lists no versions predates them, and supports 1.
    """
    listed = [each for each in extensions if each.startswith(DOCUMENT_ID)]
    return f"{DOCUMENT_ID}{version}" in listed if listed else version == 1


def router_fields(created: datetime) -> dict[str, Any]:
    """Build the fields of a router's entry in ``config.mongos`` with its supported versions.

    ``created`` is the time in the entry at which the router was started. An older router that restarts at the same
    address leaves these fields as they are, so they are valid only together with that time.
    """
    return {_ROUTER_FIELD: {"oldest": OLDEST, "newest": NEWEST, "created": created}}


def router_knows(entry: Mapping[str, Any], version: int) -> bool:
    """Whether a router, given its entry in ``config.mongos``, supports a feature version.

    Raises NoSuchKey or TypeMismatch if the entry is malformed.
    """
    fields = optional(entry, _ROUTER_FIELD, Mapping)
    if fields is None or fields.get("created") != entry.get("created"):
        return version == 1
    oldest: int = required(fields, "oldest", int)
    newest: int = required(fields, "newest", int)
    return oldest <= version <= newest
