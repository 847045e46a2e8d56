"""The command `shardwright doctor`: faults of a cluster, with their places and remedies.

The facts are read from the cluster and from this machine, and nothing is changed. `doctor_checks` finds the faults.
"""

import errno
import json
import os
import resource
import shutil
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.uri_parser import parse_uri

from shardwright.console.any_value import CODEC
from shardwright.deploy.access import log_in_by_key
from shardwright.deploy.authority import alternative_names
from shardwright.deploy.doctor_checks import CHECKS, Finding
from shardwright.deploy.doctor_facts import Certificate, Facts, Host, Kind, LocalProcess, Server
from shardwright.deploy.errors import DeployError, os_reason, reason
from shardwright.deploy.mongod import connect
from shardwright.deploy.supervisor import ask

ANSWER_SECONDS: Final = 3.0
"""Time limit for each answer, in seconds."""

_AT_ONCE: Final = 16
_CONFIG: Final = "config"
_SILENCE: Final = timedelta(minutes=1)
"""Age of its last ping in the catalog after which a router counts as gone."""

_REFUSED: Final = (13, 18)
"""Unauthorized, AuthenticationFailed."""

_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TLS_OPTIONS: Final = ("tlscafile", "tlscertificatekeyfile", "tlscertificatekeyfilepassword")

EXIT_FINDINGS: Final = 2
"""The exit status after findings; 1 if the checks could not run."""

_OF_THE_CONNECTION: Final = ("tls", "tlscafile", "tlscertificatekeyfile", "tlsinsecure")
_ALLOWED: Final = ("authsource", "authmechanism", "authmechanismproperties", *_OF_THE_CONNECTION)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Log-in options of the doctor."""

    at_routers: Mapping[str, Any] = field(default_factory=dict)
    at_members: Mapping[str, Any] = field(default_factory=dict)


def gather(
    seeds: Iterable[str],
    credentials: Credentials,
    *,
    known: Mapping[str, str] | None = None,
    metrics: Mapping[str, str] | None = None,
) -> Facts:
    """Gather the facts about the cluster of some routers.

    Args:
        seeds: addresses of routers.
        known: known connection strings of sets, by the names of their shards and ``config``.
        metrics: known metrics endpoints, by the addresses of daemons.
    """
    routers = tuple(dict.fromkeys(seeds))
    registered, sets = _ask_routers(routers, credentials)
    servers = [Server(address=address, kind=Kind.ROUTER) for address in dict.fromkeys((*routers, *registered))]
    for name, connection_string in sorted({**(known or {}), **sets}.items()):
        kind = Kind.CONFIG_DAEMON if name == _CONFIG else Kind.SHARD_DAEMON
        set_name, _, hosts = connection_string.rpartition("/")
        servers += [Server(address=host, kind=kind, replica_set=set_name or name) for host in hosts.split(",")]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as asking:
        found = tuple(asking.map(partial(_examined, credentials=credentials, metrics=metrics or {}), servers))
    return Facts(found, datetime.now(UTC), seeds=routers)


def _ask_routers(seeds: tuple[str, ...], credentials: Credentials) -> tuple[list[str], dict[str, str]]:
    """Return the routers that are registered and alive, and the connection strings of the sets.

    Without the config servers a router returns neither, but its own options still name them.
    """
    registered: list[str] = []
    sets: dict[str, str] = {}
    for seed in seeds:
        with connect(seed, ANSWER_SECONDS, credentials.at_routers) as client:
            try:
                options = client.admin.command("getCmdLineOpts")["parsed"].get("sharding", {})
                if "configDB" not in options:
                    raise DeployError(f"{seed} is not a router: name the address of a router")
                sets = {_CONFIG: options["configDB"]}
                sets |= client.admin.command("getShardMap")["map"]
                # The config servers compute the time: other clocks may differ.
                routers = client.config.get_collection("mongos", codec_options=CODEC)
                registered = living_routers(routers.find({}, {"ping": 1, "now": "$$NOW"}))
            except OperationFailure as error:
                if error.code in _REFUSED:
                    raise DeployError(f"{seed} refuses to describe the cluster: {reason(error)}") from error
            except PyMongoError:
                pass  # the examination of this router reports the reason
            else:
                break
    return registered, sets


def living_routers(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the routers that have recently renewed their entries in the catalog, which have the time ``now`` too."""
    return [str(each["_id"]) for each in entries if _is_recent(each.get("ping"), each["now"])]


def _is_recent(ping: object, now: datetime) -> bool:
    return isinstance(ping, datetime) and abs(now - ping) < _SILENCE


def _examined(server: Server, credentials: Credentials, metrics: Mapping[str, str]) -> Server:
    """Return a server with all available facts."""
    refusal = _refusal(server.address)
    if refusal is not None:
        return replace(server, refusal=refusal)
    log_in = credentials.at_members if server.is_daemon else credentials.at_routers
    server = replace(
        server,
        certificate=_certificate(server.address, log_in) if log_in.get("tls") else None,
        own_version=_own_version(metrics.get(server.address)),
    )
    only_tls = {name: value for name, value in log_in.items() if name.lower().startswith("tls")}
    with connect(server.address, ANSWER_SECONDS, only_tls) as client:
        try:
            server = _with_hello(server, client)
        except PyMongoError as error:
            return replace(server, failure=reason(error).partition(" (configured")[0].partition(", Timeout")[0])
    if not server.is_daemon:
        return server
    with connect(server.address, ANSWER_SECONDS, log_in) as client:
        return _with_options(server, client)


def _with_hello(server: Server, client: MongoClient[dict[str, Any]]) -> Server:
    """Add the facts that need no log-in."""
    client.admin.command("hello")  # opens the connection, so that it does not count below
    sent = time.time()
    hello = client.admin.command("hello")
    received = time.time()
    there = hello["localTime"].replace(tzinfo=UTC).timestamp()
    return replace(
        server,
        hello=hello,
        version=str(client.admin.command("buildInfo")["version"]),
        clock_offset_seconds=there - (sent + received) / 2,
        clock_error_seconds=(received - sent) / 2,
    )


def _with_options(server: Server, client: MongoClient[dict[str, Any]]) -> Server:
    """Add the facts that only members of the cluster and administrators may read."""
    with suppress(PyMongoError):
        server = replace(server, options=client.admin.command("getCmdLineOpts")["parsed"])
    with suppress(PyMongoError):
        log = client.admin.command({"getLog": "startupWarnings"})["log"]
        server = replace(server, startup_warnings=tuple(map(_message, log)))
    with suppress(PyMongoError):
        registered = client.config.sidecars.find()
        server = replace(server, sidecars={each["_id"]: each["sidecar"] for each in registered})
    with suppress(PyMongoError):
        members = client.admin.command("replSetGetStatus")["members"]
        away = tuple(member["name"] for member in members if not member.get("health", 1))
        server = replace(server, unreachable_members=away)
    with suppress(PyMongoError):
        configuration = client.admin.command("replSetGetConfig")["config"]
        server = replace(server, waits_for_journal=configuration.get("writeConcernMajorityJournalDefault"))
    with suppress(PyMongoError):
        sizes = client.admin.command("dbStats")
        if sizes.get("fsTotalSize"):
            server = replace(server, disk_used=sizes["fsUsedSize"] / sizes["fsTotalSize"])
    return server


def _message(line: str) -> str:
    """Return the message of a mongod's log line, with its attributes."""
    try:
        document = json.loads(line)
        return f"{document['msg']} {json.dumps(document.get('attr', {}))}"
    except (ValueError, KeyError, TypeError):
        return line


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _refusal(address: str) -> str | None:
    """Return the reason why no connection to an address can be opened; None if it can."""
    try:
        socket.create_connection(_split(address), ANSWER_SECONDS).close()
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:g} s"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error).lower()
    return None


def _certificate(address: str, options: Mapping[str, Any]) -> Certificate | None:
    """Return the certificate of a server, with any signature; None if it presents none."""
    given = {name.lower(): value for name, value in options.items()}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, own, password = (given.get(name) for name in _TLS_OPTIONS)
    host, port = _split(address)
    try:
        if own is not None:
            context.load_cert_chain(own, password=password)
        with (
            socket.create_connection((host, port), ANSWER_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            encoded = secured.getpeercert(binary_form=True)
    except OSError:
        return None
    return None if encoded is None else certificate_of(encoded)


def certificate_of(encoded: bytes) -> Certificate:
    """Extract the facts of a DER-encoded certificate."""
    certificate = x509.load_der_x509_certificate(encoded)
    return Certificate(alternative_names(certificate.extensions), certificate.not_valid_after_utc)


def _own_version(metrics_address: str | None) -> str:
    """Return the version of a daemon, from its metrics endpoint; empty if it is not known."""
    if metrics_address is None:
        return ""
    answer = ask(metrics_address, "/healthz", ANSWER_SECONDS)
    return "" if answer is None else answer.version


def examine_host(processes: Mapping[str, tuple[int, tuple[str, ...]]]) -> Host:
    """Gather the facts about this machine.

    Args:
        processes: pid and directories of the cluster's processes that run here, by their names.
    """
    found = tuple(LocalProcess(name, _open_files(pid), directories) for name, (pid, directories) in processes.items())
    directories = sorted({each for process in found for each in process.directories})
    used = {}
    for directory in directories:
        with suppress(OSError):
            usage = shutil.disk_usage(directory)
            used[directory] = 1 - usage.free / usage.total
    return Host(found, _mode_of_huge_pages(), tuple(filter(_is_read_only, directories)), used)


def _open_files(pid: int) -> int | None:
    """Return a process's limit of open files; None if it has ended, or belongs to another user."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return None
    return soft


def _is_read_only(directory: str) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY) or not os.access(directory, os.W_OK)
    except OSError as error:
        return error.errno == errno.EROFS


def _mode_of_huge_pages() -> str:
    try:
        return _HUGE_PAGES.read_text(encoding="ascii").partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def of_connection_string(uri: str, key_file: Path | None) -> tuple[list[str], Credentials]:
    """Return the router addresses in a connection string, and the credentials for routers and members.

    Args:
        key_file: the key of the cluster, for logging in at members; None without access control.
    """
    try:
        parsed: dict[str, Any] = dict(parse_uri(uri))
    except OSError as error:
        raise DeployError(f"the connection string cannot be used: cannot read {os_reason(error)}") from error
    except (PyMongoError, ValueError) as error:
        raise DeployError(f"the connection string cannot be used: {error}") from error
    options = {name.lower(): value for name, value in parsed["options"].items()}
    connection = {name: options[name] for name in _OF_THE_CONNECTION if name in options}
    at_routers = {name: value for name, value in options.items() if name in _ALLOWED}
    if parsed["username"] is not None:
        at_routers |= {"username": parsed["username"], "password": parsed["password"]}
    at_members = {**connection, **({} if key_file is None else log_in_by_key(key_file))}
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in parsed["nodelist"]]
    return hosts, Credentials(at_routers, at_members)


def findings_text(findings: list[Finding]) -> str:
    """Format the findings for people."""
    if not findings:
        return f"nothing found by {len(CHECKS)} checks"
    parts = [
        f"{finding.severity.upper()} {finding.check} at {finding.where}\n    {finding.what}\n    → {finding.mend}"
        for finding in findings
    ]
    return "\n".join([*parts, f"{len(findings)} found by {len(CHECKS)} checks"])


def findings_json(findings: list[Finding]) -> str:
    """Format the findings as one line of JSON."""
    return json.dumps({"findings": [asdict(finding) for finding in findings]}, separators=(",", ":"))
