"""The checks of `shardwright doctor`: each finds one kind of fault in the facts. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatch
from typing import Final, TypeAlias

from shardwright.deploy.doctor_facts import Facts, Kind, host_of, is_loopback, listed

OPEN_FILES_MIN: Final = 64_000
"""MongoDB's recommendation, also the limit in its systemd units."""

CLOCK_SECONDS_MAX: Final = 1.0
CERTIFICATE_DAYS_MIN: Final = 30
DISK_USED_WARNING: Final = 0.85
DISK_USED_ERROR: Final = 0.95
MAJOR_VERSION_MIN: Final = 6

_ON: Final = (True, 1, "1", "true")


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Something fails, or will soon."""
    WARNING = "warning"
    """Something is slower or less safe than it should be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        where: the address, replica set or directory.
        what: the fault, as a sentence without a period.
        mend: the remedy, as a sentence without a period.
    """

    check: str
    severity: Severity
    where: str
    what: str
    mend: str


Fault: TypeAlias = tuple[Severity, str, str, str]
"""A finding without the name of its check."""

CheckFunction: TypeAlias = Callable[[Facts], Iterator[Fault]]


def _closed_ports(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if server.refusal is not None:
            yield (
                Severity.ERROR,
                server.address,
                f"the {server.kind.value} cannot be reached from here: {server.refusal}",
                "start it, or open its port in the firewalls between clients, routers and all daemons",
            )


def _members_that_do_not_reach_each_other(facts: Facts) -> Iterator[Fault]:
    reached = {server.address for server in facts.servers if server.hello}
    for server in facts.servers:
        for member in sorted(set(server.unreachable_members) & reached):
            yield (
                Severity.ERROR,
                server.address,
                f"the mongod cannot reach the mongod behind {member}, which is running",
                "open the ports of the mongods between the hosts of the set, and check names and key files",
            )


def _daemons_without_mongod(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if server.is_daemon and server.refusal is None and server.failure is not None:
            yield (
                Severity.ERROR,
                server.address,
                f"the {server.kind.value} accepts connections and does not answer: {server.failure}",
                "start the mongod behind it, and compare --mongod-socket with the mongod's unixDomainSocket.pathPrefix",
            )


def _routers_that_do_not_answer(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if not server.is_daemon and server.refusal is None and server.failure is not None:
            yield (
                Severity.ERROR,
                server.address,
                f"the router accepts connections and does not answer: {server.failure}",
                "look for the reason at /readyz on its metrics port, and in its log",
            )


def _mongods_in_place_of_daemons(facts: Facts) -> Iterator[Fault]:
    sidecars = facts.sidecars()
    for server in facts.servers:
        if not server.is_daemon or not server.hello:
            continue
        lacks_role = server.options is not None and server.option("sharding.clusterRole") is None
        lacks_extensions = server.kind is Kind.SHARD_DAEMON and "extensions" not in server.hello
        if server.address in sidecars or lacks_role or lacks_extensions:
            instead = sidecars.get(server.address)
            where = "--configdb of the routers" if server.kind is Kind.CONFIG_DAEMON else "the catalog (addShard)"
            yield (
                Severity.ERROR,
                server.address,
                f"a mongod answers where the address of a {server.kind.value} belongs",
                f"write {instead or f'the address of the {server.kind.value} in front of it'} into {where}",
            )


def _sets_unlike_their_daemons(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        error = server.hello.get("setUpError")
        if error:
            what, _, mend = str(error).partition("; ")
            yield Severity.ERROR, server.address, what, mend or "compare --mongod-address with the set's configuration"


def _members_without_daemons(facts: Facts) -> Iterator[Fault]:
    for name, servers in facts.sets().items():
        known = {server.address for server in servers} | set(facts.sidecars().values())
        shown = {host for server in servers for key in ("hosts", "passives") for host in server.hello.get(key, ())}
        has_daemons = any("setUpError" not in server.hello and server.sidecars for server in servers)
        for host in sorted(shown - known) if has_daemons else ():
            yield (
                Severity.ERROR,
                name,
                f"the member {host} has no registered daemon",
                f"start a daemon in front of it, with --mongod-address {host}",
            )


def _sets_without_primary(facts: Facts) -> Iterator[Fault]:
    for name, servers in facts.sets().items():
        answering = [server for server in servers if server.hello]
        if answering and not any(server.hello.get("isWritablePrimary") for server in answering):
            yield (
                Severity.ERROR,
                name,
                f"no primary among {listed(server.address for server in answering)}",
                "start a majority of the mongods, or initiate the set with the mongods' addresses (replSetInitiate)",
            )


def _loopback_advertised(facts: Facts) -> Iterator[Fault]:
    addresses = [server.address for server in facts.servers]
    elsewhere = [each for each in (*addresses, *facts.seeds) if not is_loopback(host_of(each))]
    for address in addresses:
        if elsewhere and is_loopback(host_of(address)):
            yield (
                Severity.ERROR,
                address,
                f"an address of loopback is advertised, which others such as {elsewhere[0]} take for themselves",
                "give the daemon --advertise HOST[:PORT], or --bind-ip an address that the others reach",
            )


def _clocks_apart(facts: Facts) -> Iterator[Fault]:
    known = [server for server in facts.servers if server.clock_offset_seconds is not None]
    if not known:
        return
    offsets = sorted(server.clock_offset_seconds or 0.0 for server in known)
    middle = offsets[len(offsets) // 2]
    for server in known:
        apart = (server.clock_offset_seconds or 0.0) - middle
        if abs(apart) > CLOCK_SECONDS_MAX + server.clock_error_seconds:
            yield (
                Severity.ERROR,
                server.address,
                f"its clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} the other clocks",
                "keep all clocks right with chrony or another client of NTP",
            )


def _certificates_about_to_expire(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if server.certificate is None:
            continue
        left = server.certificate.expires - facts.now
        if left < timedelta(days=CERTIFICATE_DAYS_MIN):
            has_expired = left < timedelta(0)
            yield (
                Severity.ERROR if has_expired else Severity.WARNING,
                server.address,
                f"its certificate {'expired' if has_expired else 'expires'} on {server.certificate.expires:%Y-%m-%d}",
                "replace the file, then send SIGHUP or rotateCertificates",
            )


def _certificates_for_other_hosts(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if server.certificate is not None and not any(_covers(name, server.host) for name in server.certificate.names):
            yield (
                Severity.ERROR,
                server.address,
                f"its certificate is not for {server.host}, but for {listed(server.certificate.names) or 'no host'}",
                f"issue one with {server.host} among its subject alternative names",
            )


def _covers(name: str, host: str) -> bool:
    return name.lower() == host.lower() or (
        name.startswith("*.") and fnmatch(host.lower(), name.lower()) and host.count(".") == name.count(".")
    )


def _few_open_files(facts: Facts) -> Iterator[Fault]:
    mend = f"set LimitNOFILE={OPEN_FILES_MIN} in the units, or raise `ulimit -n` before processes are started"
    processes = facts.host.processes if facts.host is not None else ()
    few = {each.name: each.open_files for each in processes if (each.open_files or OPEN_FILES_MIN) < OPEN_FILES_MIN}
    for limit in sorted({number for number in few.values() if number is not None}):
        names = listed(name for name, number in few.items() if number == limit)
        yield Severity.WARNING, names, f"may open {limit} files, fewer than {OPEN_FILES_MIN}", mend
    for server in facts.servers if not processes else ():
        if any("rlimits" in warning for warning in server.startup_warnings):
            yield Severity.WARNING, server.address, "the mongod behind it may open too few files", mend


def _misfitting_versions(facts: Facts) -> Iterator[Fault]:
    daemons = [server for server in facts.servers if server.is_daemon and server.version]
    for server in daemons:
        major = server.version.partition(".")[0]
        if major.isdigit() and int(major) < MAJOR_VERSION_MIN:
            yield (
                Severity.ERROR,
                server.address,
                f"its mongod is {server.version}, older than {MAJOR_VERSION_MIN}.0",
                f"upgrade the mongod to {MAJOR_VERSION_MIN}.0 or newer",
            )
    releases = {".".join(server.version.split(".")[:2]) for server in daemons}
    if len(releases) > 1:
        yield (
            Severity.WARNING,
            "mongods",
            f"mongods of several releases run together: {listed(releases)}",
            "finish the upgrade: all mongods of a cluster should be of one release",
        )
    own = {server.own_version for server in facts.servers if server.own_version}
    if len(own) > 1:
        yield (
            Severity.WARNING,
            "daemons",
            f"daemons of several versions run together: {listed(own)}",
            "finish the upgrade: restart the daemons of the older version",
        )


def _test_commands_missing(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if server.kind is not Kind.SHARD_DAEMON or server.options is None:
            continue
        if server.option("setParameter.enableTestCommands") not in _ON:
            yield (
                Severity.ERROR,
                server.address,
                "its mongod runs without enableTestCommands, so transactions cannot write on several shards",
                "start the mongod with --setParameter enableTestCommands=1",
            )


def _journal_off(facts: Facts) -> Iterator[Fault]:
    for server in facts.servers:
        if server.option("storage.journal.enabled") is False or server.option("storage.engine") == "inMemory":
            yield (
                Severity.ERROR,
                server.address,
                "its mongod has no journal, so acknowledged writes do not survive a crash",
                "start the mongod with its journal, which is the default (storage.journal.enabled)",
            )
        if server.waits_for_journal is False:
            yield (
                Severity.WARNING,
                server.address,
                "majority writes do not wait for the journal (writeConcernMajorityJournalDefault)",
                "set writeConcernMajorityJournalDefault to true with replSetReconfig",
            )


def _full_disks(facts: Facts) -> Iterator[Fault]:
    used = [(server.address, server.disk_used) for server in facts.servers if server.disk_used is not None]
    here = facts.host.disks_used.items() if facts.host is not None else ()
    for where, fraction in (*used, *here):
        if fraction > DISK_USED_WARNING:
            yield (
                Severity.ERROR if fraction > DISK_USED_ERROR else Severity.WARNING,
                where,
                f"the disk is {fraction:.0%} full",
                "make room, add a shard, or give the data a larger disk",
            )


def _read_only_disks(facts: Facts) -> Iterator[Fault]:
    mend = "remount the disk for writing, and look for the reason in the log of the kernel"
    for directory in facts.host.read_only if facts.host is not None else ():
        yield Severity.ERROR, directory, "the directory cannot be written", mend
    for server in facts.servers:
        if server.hello.get("readOnly"):
            yield Severity.ERROR, server.address, "its mongod is read-only", mend


def _huge_pages(facts: Facts) -> Iterator[Fault]:
    mend = "write madvise or never to /sys/kernel/mm/transparent_hugepage/enabled, also at boot"
    if facts.host is not None and facts.host.huge_pages == "always":
        yield Severity.WARNING, "this machine", "transparent huge pages are on, which slows mongods down", mend
        return
    for server in facts.servers:
        if any("transparent_hugepage/enabled" in warning for warning in server.startup_warnings):
            yield Severity.WARNING, server.address, "transparent huge pages are on, which slows its mongod down", mend


def _unknown_options(facts: Facts) -> Iterator[Fault]:
    hidden = [
        server.address for server in facts.servers if server.is_daemon and server.hello and server.options is None
    ]
    if hidden:
        yield (
            Severity.WARNING,
            listed(hidden),
            "the options of the mongods cannot be read, so several checks were left out",
            "give the doctor the cluster's key with --key-file, or a certificate of a member",
        )


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table.

    Attributes:
        title: the state of a cluster without such faults, for the documentation.
    """

    name: str
    title: str
    find: CheckFunction

    def findings(self, facts: Facts) -> list[Finding]:
        """Run the check and return the faults."""
        return [Finding(self.name, *fault) for fault in self.find(facts)]


CHECKS: Final = (
    Check("closed-port", "every router and daemon can be reached", _closed_ports),
    Check("closed-port-between-members", "mongods reach each other", _members_that_do_not_reach_each_other),
    Check("daemon-without-mongod", "every daemon has its mongod", _daemons_without_mongod),
    Check("router-without-answer", "every router answers", _routers_that_do_not_answer),
    Check("mongod-in-place-of-daemon", "catalog and routers name daemons, never mongods", _mongods_in_place_of_daemons),
    Check("set-up", "sets have the addresses of mongods, as their daemons know them", _sets_unlike_their_daemons),
    Check("member-without-daemon", "every member of a set has a daemon", _members_without_daemons),
    Check("no-primary", "every set has a primary", _sets_without_primary),
    Check("loopback-advertised", "addresses of loopback are used by all or by none", _loopback_advertised),
    Check("clock", "clocks differ by at most a second", _clocks_apart),
    Check("certificate-expires", "certificates are valid for another 30 days", _certificates_about_to_expire),
    Check("certificate-host", "certificates are for the advertised hosts", _certificates_for_other_hosts),
    Check("open-files", "processes may open 64,000 files", _few_open_files),
    Check(
        "versions",
        "mongods are 6.0 or newer, and of one release; daemons are of one version",
        _misfitting_versions,
    ),
    Check("test-commands", "mongods of shards have enableTestCommands", _test_commands_missing),
    Check("journal", "mongods have a journal, and majority writes wait for it", _journal_off),
    Check("disk-full", "disks are at most 85 % full", _full_disks),
    Check("disk-read-only", "disks can be written", _read_only_disks),
    Check("huge-pages", "transparent huge pages are not always on", _huge_pages),
    Check("unknown-options", "the options of all mongods can be read", _unknown_options),
)
"""All checks, in the order of the output."""


def examine(facts: Facts) -> list[Finding]:
    """Run all checks."""
    return [finding for check in CHECKS for finding in check.findings(facts)]
