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

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from shardwright.sharding.document_fields import naming, optional, required
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

OLDEST: Final = 1
NEWEST: Final = 2
"""The feature versions that this release supports."""

RECORDED_BY_SHARDS: Final = 2
"""Version from which on a shard records the version, which is the newest format of the data that it persists."""

DOCUMENT_ID: Final = "featureVersion"
"""Id of the document in ``admin.system.version`` of the config servers, and of each shard."""

INTERVAL_SECONDS: Final = 30.0
"""Time for which a daemon may use the previous version after an upgrade has finished."""

MALFORMED: Final = frozenset({ErrorCode.NoSuchKey, ErrorCode.TypeMismatch, ErrorCode.BadValue})
"""Codes of errors for a malformed document, which does not become right by itself."""

_WITHOUT_DOCUMENT: Final = 1
EXTENSIONS: Final = tuple(f"{DOCUMENT_ID}{version}" for version in range(OLDEST, NEWEST + 1))

_ROUTER_FIELD: Final = "featureVersions"


def query(read_concern: str = "majority") -> dict[str, Any]:
    """Build the command that finds the document, for the admin database of a config server.

    A new primary does not know yet which writes of its predecessor are on a majority: it reads with ``local``.
    """
    return {"find": "system.version", "filter": {"_id": DOCUMENT_ID}, "readConcern": {"level": read_concern}}


def recording(version: int) -> dict[str, Any]:
    """Build the command that records the version, for the admin database of a server; it never lowers the version."""
    update = {"q": {"_id": DOCUMENT_ID}, "u": {"$max": {"version": version}}, "upsert": True}
    return {"update": "system.version", "updates": [update], "writeConcern": {"w": "majority"}}


def version_of(document: Mapping[str, Any] | None) -> int:
    """Return the feature version in the config servers' document.

    Without a document no upgrade was ever finished, so it is 1, also for a release that no longer supports that.

    Raises NoSuchKey, TypeMismatch or BadValue if the document is malformed.
    """
    if document is None:
        return _WITHOUT_DOCUMENT
    with naming(f"admin.system.version {{_id: '{DOCUMENT_ID}'}}"):
        version: int = required(document, "version", int)
        if version < 1:
            raise CommandError(ErrorCode.BadValue, f'"version" has to be 1 or more, found {version}')
    return version


def refusal(version: int) -> str | None:
    """Explain why a daemon of this release must not run in a cluster with this feature version; None if it may."""
    known = f"the feature version of the cluster is {version}, and this daemon knows {OLDEST} to {NEWEST}"
    if version > NEWEST:
        return f"{known}: install the newer release with which the upgrade of the cluster was finished"
    if version < OLDEST:
        return f"{known}: install the release before this one, and run `shardwright finish-upgrade` with it"
    return None


def newest_known(extensions: Collection[str]) -> int:
    """Return the newest feature version that a daemon supports, given the extensions in its hello.

    A daemon that lists no versions predates them, and supports 1.
    """
    return max(_listed(extensions), default=_WITHOUT_DOCUMENT)


def knows(extensions: Collection[str], version: int) -> bool:
    """Whether a daemon supports a feature version, given the extensions in its hello."""
    return version in (_listed(extensions) or {_WITHOUT_DOCUMENT})


def _listed(extensions: Collection[str]) -> set[int]:
    numbers = [each.removeprefix(DOCUMENT_ID) for each in extensions if each.startswith(DOCUMENT_ID)]
    return {int(number) for number in numbers if number.isdecimal()}


def router_fields(created: datetime) -> dict[str, Any]:
    """Build the fields of a router's entry in ``config.mongos`` with its supported versions.

    ``created`` is the time in the entry at which the router was started. An older router that restarts at the same
    address leaves these fields as they are, so they are valid only together with that time.
    """
    return {_ROUTER_FIELD: {"oldest": OLDEST, "newest": NEWEST, "created": created}}


def router_knows(entry: Mapping[str, Any], version: int) -> bool:
    """Whether a router, given its entry in ``config.mongos``, supports a feature version.

    Raises NoSuchKey or TypeMismatch, naming the entry, if it is malformed.
    """
    oldest, newest = _router_range(entry)
    return oldest <= version <= newest


def _router_range(entry: Mapping[str, Any]) -> tuple[int, int]:
    with naming(f"config.mongos {{_id: '{entry.get('_id')}'}}"):
        fields = optional(entry, _ROUTER_FIELD, Mapping)
        if fields is None or fields.get("created") != entry.get("created"):
            return _WITHOUT_DOCUMENT, _WITHOUT_DOCUMENT
        return required(fields, "oldest", int), required(fields, "newest", int)


def may_be_obstacle(entry: Mapping[str, Any]) -> bool:
    """Whether the router of an entry in ``config.mongos`` would be an obstacle to the newest version if it ran."""
    return _router_obstacle(entry) is not None


def _router_obstacle(entry: Mapping[str, Any]) -> str | None:
    remedy = "upgrade it, or stop it and wait 60 s"
    try:
        if router_knows(entry, NEWEST):
            return None
    except CommandError as error:
        return f"the router {entry.get('_id')} does not say which feature versions it knows ({error.message}); {remedy}"
    return f"the router {entry.get('_id')} does not know feature version {NEWEST}; {remedy}"


def _member_obstacle(address: str, hello: Mapping[str, Any], failure: str) -> str | None:
    if failure:
        return f"{address} cannot be reached ({failure})"
    if not knows(hello.get("extensions", ()), NEWEST):
        return f"{address} does not know feature version {NEWEST}; upgrade and restart it"
    return None


Answer = tuple[str, Mapping[str, Any], str]
"""Address and hello of a member, and the reason if it could not be asked, otherwise an empty text."""


def upgrade_report(version: int, members: Iterable[Answer], routers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the reply to a dry run of ``finishUpgrade``.

    Args:
        version: the cluster's.
        members: of all sets.
        routers: the entries in ``config.mongos`` of the running routers.
    """
    obstacles: list[str | None] = []
    daemons: list[dict[str, Any]] = []
    for address, hello, failure in members:
        obstacles.append(_member_obstacle(address, hello, failure))
        support: dict[str, Any] = (
            {"error": failure} if failure else {"newest": newest_known(hello.get("extensions", ()))}
        )
        daemons.append({"name": address, **support})
    for entry in routers:
        obstacles.append(_router_obstacle(entry))
        try:
            support = {"newest": _router_range(entry)[1]}
        except CommandError as error:
            support = {"error": error.message}
        daemons.append({"name": f"router {entry.get('_id')}", **support})
    return {
        "featureVersion": version,
        "newest": NEWEST,
        "obstacles": [each for each in obstacles if each is not None] if version < NEWEST else [],
        "daemons": daemons,
    }


def check_obstacles(report: Mapping[str, Any]) -> None:
    """Raise IncompatibleServerVersion if a report has obstacles."""
    if report["obstacles"]:
        raise CommandError(
            ErrorCode.IncompatibleServerVersion,
            f"the upgrade cannot be finished, and the feature version of the cluster stays {report['featureVersion']}: "
            f"{'; '.join(report['obstacles'])}",
        )
