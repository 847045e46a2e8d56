"""The member of a replica set on this host, as described by its daemon's file.

`init-set` and `join` read everything from there, so that nothing has to be repeated on their command lines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardwright.daemon.configuration.configuration import Configuration, configuration_of_file
from shardwright.daemon.configuration.file import ConfigurationError
from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.table import CONFIGD, ROUTER, SHARDD
from shardwright.daemon.options import known_address
from shardwright.deploy.access import NO_LOG_IN, log_in_by_key
from shardwright.deploy.errors import DeployError
from shardwright.deploy.modes import SENDS_CERTIFICATE

CONFIGURATION: Final = Path("/etc/shardwright")
"""The directory in which the units expect the files."""

_USES_TLS: Final = ("prefer", "require")
"""The TLS modes in which a process uses TLS for its own connections to others."""


@dataclass(frozen=True, slots=True)
class HostMember:
    """One member of a set.

    Attributes:
        is_shard: whether the set is a shard, not the config servers.
        mongod: the address of the mongod in the configuration of the set.
        daemon: the address of the daemon in front of it, for the rest of the cluster.
        log_in: options of a client that logs in as a member of the cluster.
    """

    replica_set: str
    is_shard: bool
    mongod: str
    daemon: str
    log_in: Mapping[str, Any]


def read_member(directory: Path, replica_set: str) -> HostMember:
    """Read the member of a set on this host.

    Args:
        replica_set: the name of the set, which is in the name of the file.
    """
    candidates = [(program, _file(directory, program, replica_set)) for program in (SHARDD, CONFIGD)]
    found = [(program, path) for program, path in candidates if path.exists()]
    if len(found) != 1:
        names = " and ".join(str(path) for _, path in found or candidates)
        problem = "are both there; keep one" if found else "do not exist; write one, or name another --config-dir"
        raise DeployError(f"{names} {problem}")
    ((program, path),) = found
    values = _read(program, path).values
    if "/" in values.mongod_address:
        raise DeployError(f"{path}: the mongod {values.mongod_address} has no port, so other hosts cannot reach it")
    return HostMember(replica_set, program is SHARDD, values.mongod_address, known_address(values), _log_in(values))


def read_router(directory: Path) -> str | None:
    """Return the address of this host's router; None if it has none."""
    path = directory / "router.yaml"
    return known_address(_read(ROUTER, path).values) if path.exists() else None


def _file(directory: Path, program: Program, replica_set: str) -> Path:
    return directory / f"{program.name.removeprefix('shardwright-')}-{replica_set}.yaml"


def _read(program: Program, path: Path) -> Configuration:
    try:
        return configuration_of_file(program, path)
    except ConfigurationError as error:
        raise DeployError("\n".join(error.mistakes)) from error
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}") from error


def _log_in(values: Any) -> Mapping[str, Any]:  # noqa: ANN401 - the options of a daemon
    connection: dict[str, Any] = {}
    if values.tls_mode.value in _USES_TLS:
        own = values.tls_cluster_file or values.tls_certificate_key_file
        connection = {
            "tls": True,
            "tlsAllowInvalidCertificates": values.tls_allow_invalid_certificates,
            "tlsAllowInvalidHostnames": values.tls_allow_invalid_hostnames,
            **_present(tlsCAFile=values.tls_ca_file, tlsCertificateKeyFile=own),
        }
        password_file = (
            values.tls_cluster_password_file
            if values.tls_cluster_file
            else values.tls_certificate_key_file_password_file
        )
        if password_file is not None:
            connection["tlsCertificateKeyFilePassword"] = _password(password_file)
    mode = values.cluster_auth_mode
    if mode is not None and mode.value in SENDS_CERTIFICATE:
        return {**connection, "authMechanism": "MONGODB-X509", "authSource": "$external"}
    return {**connection, **(NO_LOG_IN if values.key_file is None else log_in_by_key(values.key_file))}


def _present(**files: Path | None) -> dict[str, str]:
    return {name: str(path) for name, path in files.items() if path is not None}


def _password(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}") from error
