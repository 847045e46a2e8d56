"""The problems of a cluster in words, from the facts that `overview` has read.

They are the findings of `doctor` and the alerts that a client can detect.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

from shardwright.console.metrics import Sampler
from shardwright.console.settings import Settings

ROUTER_SECONDS_MAX: Final = 90
LAG_SECONDS_MAX: Final = 30
DISK_WARNING: Final = 0.85
DISK_ERROR: Final = 0.95
CERTIFICATE_DAYS_MIN: Final = 30
ERROR_SHARE_MAX: Final = 0.05

Problem: TypeAlias = dict[str, str]
Document: TypeAlias = Mapping[str, Any]
_Check: TypeAlias = Callable[[Document, Sampler, Settings], Iterator[tuple[str, str, str, str]]]


def problems(document: Document, sampler: Sampler, settings: Settings) -> list[Problem]:
    """Return all problems, the worst first: ``severity``, ``where``, ``what`` and ``mend``.

    Args:
        document: the overview, with ``isListed`` (whether the list of shards was read) and ``isMonitored`` (whether a
            router's view of their members was read).
    """
    found = [
        {"severity": severity, "where": where, "what": what, "mend": mend}
        for check in _CHECKS
        for severity, where, what, mend in check(document, sampler, settings)
    ]
    return sorted(found, key=lambda each: (_SEVERITIES.index(each["severity"]), each["where"]))


_SEVERITIES: Final = ("error", "warning", "info")


def _sets(document: Document) -> Iterator[tuple[str, list[Document]]]:
    for each in (document["configServers"], *document["shards"]):
        yield each["_id"], each["members"]


def _processes(document: Document) -> Iterator[tuple[str, Document]]:
    for router in document["routers"]:
        yield router["address"], router
    for _, members in _sets(document):
        for member in members:
            yield member["address"], member


def _unknown_shards(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    if not document["isListed"]:
        yield (
            "warning",
            "cluster",
            "the list of its shards could not be read, so some of them may be missing here",
            "look at the config servers; users need the role clusterMonitor",
        )


def _no_primary(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for name, members in _sets(document):
        if not members and document["isMonitored"]:
            yield (
                "warning",
                name,
                f"the members of {name} are not known, nor whether it has a primary",
                "wait a moment if the shard is new; otherwise look at its daemons, and at the network of the routers",
            )
        if members and not any(each["state"] == "primary" for each in members):
            yield (
                "error",
                name,
                f"no router knows a primary of {name}",
                "writes to it fail: start its members or their daemons, a majority of them at least",
            )


def _unhealthy_members(
    document: Document, _sampler: Sampler, _settings: Settings
) -> Iterator[tuple[str, str, str, str]]:
    for name, members in _sets(document):
        for each in members:
            if each["state"] in ("down", "unknown", "recovering", "rollback", "removed", "startup", "startup2"):
                yield (
                    "error" if each["state"] in ("down", "unknown") else "warning",
                    each["address"],
                    f"the member of {name} is in state {each['state']}",
                    "start it or look at its log: the next failure may leave the set without a majority",
                )


def _late_routers(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for each in document["routers"]:
        seconds = each["seenSecondsAgo"]
        if seconds is not None and (not each["isAlive"] or seconds > ROUTER_SECONDS_MAX):
            yield (
                "warning",
                each["address"],
                f"the router reported last {seconds:.0f} seconds ago",
                "start it, or ignore this if it was removed",
            )


def _lag(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for where, each in _processes(document):
        lag = each.get("lagSeconds")
        if lag is not None and lag > LAG_SECONDS_MAX:
            yield (
                "warning",
                where,
                f"the member is {lag:.0f} seconds behind its primary",
                "majority writes wait and reads from it are old: look at its disk, its network and its load",
            )


def _disks(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for each in document["shards"]:
        if each["diskTotal"]:
            used = each["diskUsed"] / each["diskTotal"]
            if used > DISK_WARNING:
                yield (
                    "error" if used > DISK_ERROR else "warning",
                    each["_id"],
                    f"the disk of the primary is {used:.0%} full",
                    "add a shard, remove data, or enlarge the disk",
                )


def _certificates(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for where, each in _processes(document):
        expires = each.get("certificateExpires")
        if expires is not None and expires - document["at"] < timedelta(days=CERTIFICATE_DAYS_MIN):
            is_over = expires < document["at"]
            days = abs((expires - document["at"]).days)
            yield (
                "error" if is_over else "warning",
                where,
                f"the certificate expired {days} days ago" if is_over else f"the certificate expires in {days} days",
                "replace the file and run rotateCertificates",
            )


def _versions(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    found: dict[str, list[str]] = {}
    for where, each in _processes(document):
        if each.get("daemonVersion"):
            found.setdefault(each["daemonVersion"], []).append(where)
    if len(found) > 1:
        yield (
            "warning",
            "cluster",
            "processes run different versions: " + "; ".join(f"{name} at {len(each)}" for name, each in found.items()),
            "finish the upgrade",
        )


def _silent(_document: Document, sampler: Sampler, settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for target in settings.targets:
        if target.process in sampler.silent:
            yield (
                "error",
                target.process,
                f"its metrics at {target.address} do not answer",
                "the process has ended or hangs: look at its log, and restart it",
            )


def _internal_errors(_document: Document, sampler: Sampler, settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    for target in settings.targets:
        count = sampler.values(target.process).get("internal_errors_total", 0)
        if count:
            yield (
                "warning",
                target.process,
                f"{count:.0f} internal errors since it started",
                "a bug: keep the log with its traceback, and report it",
            )


def _failing_operations(
    document: Document, _sampler: Sampler, _settings: Settings
) -> Iterator[tuple[str, str, str, str]]:
    rates = document["rates"]
    if rates and rates["rate"] and rates["errors"] / rates["rate"] > ERROR_SHARE_MAX:
        yield (
            "warning",
            "operations",
            f"{rates['errors'] / rates['rate']:.0%} of all operations fail",
            "look at Operations for the commands, and at the routers' logs for the reasons",
        )


def _balancer(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    if document["balancer"]["mode"] == "off":
        yield "info", "balancer", "the balancer is off", "start it on the page Balancer if that is not on purpose"


def _draining(document: Document, _sampler: Sampler, _settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    is_off = document["balancer"]["mode"] == "off"
    for each in document["shards"]:
        if each["draining"]:
            yield (
                "warning" if is_off else "info",
                each["_id"],
                "the shard is being drained" + (", which waits for the balancer" if is_off else ""),
                "start the balancer" if is_off else "run removeShard again to see what remains",
            )


_CHECKS: Final[tuple[_Check, ...]] = (
    _unknown_shards,
    _no_primary,
    _unhealthy_members,
    _silent,
    _late_routers,
    _lag,
    _disks,
    _certificates,
    _versions,
    _internal_errors,
    _failing_operations,
    _balancer,
    _draining,
)
