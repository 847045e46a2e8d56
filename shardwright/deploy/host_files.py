"""The files of each host, made from the description of a cluster, and the member that a daemon's file describes.

`init-set` and `join` read the member on their host from the daemon's file, so that nothing has to be repeated on their
command lines.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from shardwright.daemon.configuration.configuration import Configuration, configuration_of_file, put_path
from shardwright.daemon.configuration.file import ConfigurationError
from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.table import CONFIGD, ROUTER, SHARDD
from shardwright.daemon.option_values import known_address
from shardwright.deploy.access import KEY_FILE, NO_LOG_IN, SENDS_CERTIFICATE, has_key, log_in_by_key
from shardwright.deploy.description import Description, SetPlan
from shardwright.deploy.errors import DeployError
from shardwright.deploy.topology import CONFIG_SET

HEADER: Final = "# Written by `shardwright plan`; change cluster.yaml and run it again.\n"
KEY: Final = "key"
HOST_CERTIFICATE: Final = "host.pem"
AUTHORITY: Final = "ca.pem"
AUTHORITIES: Final = "authorities.pem"
UNITS: Final = "units"

_SOCKETS: Final = "/run/shardwright"
_LOGS: Final = "/var/log/shardwright"
_DATA: Final = "/var/lib/shardwright"
_LOOPBACK: Final = "127.0.0.1"

CONFIGURATION: Final = Path("/etc/shardwright")
"""The directory in which the units expect the files."""

_USES_TLS: Final = ("prefer", "require")
"""The TLS modes in which a process uses TLS for its own connections to others."""


def texts_of(description: Description, host: str) -> dict[str, str]:
    """Return the texts of a host's files by their names in `CONFIGURATION`, without the files with secrets."""
    found = {}
    if host in description.routers:
        found["router.yaml"] = _as_yaml(_router(description, host), "router", description)
    for each in _sets_on(description, host):
        mongod, daemon = _mongod(description, each, host), _daemon(description, each, host)
        found[f"mongod-{each.name}.conf"] = _as_yaml(mongod, "mongod", description)
        found[f"{each.role}-{each.name}.yaml"] = _as_yaml(daemon, each.role, description)
    found[UNITS] = "".join(f"{unit}\n" for unit in _units(description, host))
    return found


def secrets_of(description: Description) -> tuple[str, ...]:
    """Return the names of the files with secrets or certificates that every host has."""
    tls = (AUTHORITY, AUTHORITIES, *((HOST_CERTIFICATE,) if description.are_certificates_issued else ()))
    return (
        *((KEY,) if has_key(description.cluster_auth_mode) else ()),
        *(tls if description.has_tls else ()),
    )


def certificate_names(description: Description, host: str) -> list[str]:
    """Return the names and addresses in the certificate of a host, besides its own name."""
    return [description.addresses[host], *(description.client_names if host in description.routers else ())]


def _router(description: Description, host: str) -> dict[str, Any]:
    required = description.are_client_certificates_required
    return _nested(
        {
            **_common(description, host, description.router_port, description.router_metrics_port, "router.log"),
            **({} if required or not description.has_tls else {"net.tls.allowConnectionsWithoutCertificates": True}),
            "sharding.configDB": description.config_string,
            **({} if description.workers == 1 else {"shardwright.workers": description.workers}),
        }
    )


def _daemon(description: Description, each: SetPlan, host: str) -> dict[str, Any]:
    log = f"{each.role}-{each.name}.log"
    return _nested(
        {
            **_common(description, host, each.port, each.metrics_port, log),
            "shardwright.mongod.socket": f"{_SOCKETS}/mongodb-{each.mongod_port}.sock",
            "shardwright.mongod.address": f"{host}:{each.mongod_port}",
            **({"shardwright.mongod.tls": True} if description.has_tls else {}),
        }
    )


def _common(description: Description, host: str, port: int, metrics_port: int, log: str) -> dict[str, Any]:
    addresses = _listening(description, host)
    return {
        "net.bindIp": addresses,
        "net.port": port,
        "net.unixDomainSocket.pathPrefix": _SOCKETS,
        **_tls(description),
        **({"net.tls.clusterCAFile": f"{CONFIGURATION}/{AUTHORITIES}"} if description.has_tls else {}),
        **_security(description),
        "systemLog.destination": "file",
        "systemLog.path": f"{_LOGS}/{log}",
        "systemLog.logRotate": "reopen",
        "shardwright.advertise": host,
        "shardwright.metrics.port": metrics_port,
        **({"shardwright.metrics.bindIp": addresses} if description.has_metrics_on_network else {}),
    }


def _mongod(description: Description, each: SetPlan, host: str) -> dict[str, Any]:
    return _nested(
        {
            "net.bindIp": _listening(description, host),
            # A mongod without this neither listens on IPv6 addresses nor connects to them.
            **({"net.ipv6": True} if description.has_ipv6 else {}),
            "net.port": each.mongod_port,
            "net.unixDomainSocket.pathPrefix": _SOCKETS,
            **_tls(description),
            **_security(description),
            "replication.replSetName": each.name,
            # Transactions that write on several shards need prepareTransaction.
            "setParameter.enableTestCommands": True,
            # The daemon's UNIX socket counts as localhost, so its clients could create the first user.
            "setParameter.enableLocalhostAuthBypass": False,
            # The daemon is the only client and stops before its mongod, so no client needs time to notice the shutdown.
            "setParameter.shutdownTimeoutMillisForSignaledShutdown": 0,
            # After a primary has frozen, the others confirm majority writes of the next one 4 s sooner.
            "setParameter.oplogNetworkTimeoutBufferSeconds": 1,
            # A genuine config server sets this itself.
            **({"setParameter.periodicNoopIntervalSecs": 1} if each.name == CONFIG_SET else {}),
            "storage.dbPath": f"{_DATA}/{each.name}",
            **({} if each.cache_gb is None else {"storage.wiredTiger.engineConfig.cacheSizeGB": each.cache_gb}),
            "systemLog.destination": "file",
            "systemLog.path": f"{_LOGS}/mongod-{each.name}.log",
            "systemLog.logAppend": True,
            "systemLog.logRotate": "reopen",
        }
    )


def _listening(description: Description, host: str) -> str:
    return ",".join(dict.fromkeys((_LOOPBACK, description.addresses[host])))


def _tls(description: Description) -> dict[str, Any]:
    if not description.has_tls:
        return {}
    return {
        "net.tls.mode": "requireTLS",
        "net.tls.certificateKeyFile": f"{CONFIGURATION}/{HOST_CERTIFICATE}",
        "net.tls.CAFile": f"{CONFIGURATION}/{AUTHORITY}",
    }


def _security(description: Description) -> dict[str, Any]:
    mode = description.cluster_auth_mode
    return {
        **({"security.keyFile": f"{CONFIGURATION}/{KEY}"} if has_key(mode) else {}),
        **({} if mode == KEY_FILE else {"security.clusterAuthMode": mode}),
    }


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for path, value in options.items():
        put_path(document, path, value)
    return document


def _as_yaml(document: dict[str, Any], role: str, description: Description) -> str:
    merged = _merged(document, description.options.get(role, {}), f"options.{role}")
    text: str = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)
    return HEADER + text


def _merged(document: Mapping[str, Any], further: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Merge further options into a document; they replace its values.

    Raises:
        ConfigurationError: a value would replace a section, or a section a value.
    """
    result = dict(document)
    for key, value in further.items():
        inner, present = f"{path}.{key}", result.get(key, value)
        if isinstance(present, Mapping) != isinstance(value, Mapping):
            what = "a section with keys" if isinstance(present, Mapping) else "a single value"
            raise ConfigurationError([f"{inner} has to be {what}"])
        result[key] = _merged(present, value, inner) if isinstance(value, Mapping) else value
    return result


def _sets_on(description: Description, host: str) -> Iterator[SetPlan]:
    return (each for each in description.sets if host in each.members)


def _units(description: Description, host: str) -> Iterator[str]:
    """Yield the units to enable and start, in their order."""
    yield "shardwright.target"
    for each in _sets_on(description, host):
        yield f"shardwright-mongod@{each.name}.service"
    for each in _sets_on(description, host):
        yield f"shardwright-{each.role}@{each.name}.service"
    if host in description.routers:
        yield "shardwright-router.service"


def steps_text(description: Description) -> str:
    """Write the instructions: which command to run on which host, from the files to the first user."""
    parts = [HEADER, "# Every command can be repeated; it continues where it stopped.\n"]
    if description.has_tls and not description.are_certificates_issued:
        parts.append("\n# On each host, before anything starts; the key stays there:\n")
        parts += [_request_steps(description, host) for host in description.addresses]
    parts.append("\n# On each host:\nsystemctl enable --now $(cat /etc/shardwright/units)\n")
    for each in description.sets:
        first, *others = each.members
        parts.append(f"\n# On {first}:\nshardwright init-set {each.name}{_router_option(description, each, first)}\n")
        for other in others:
            parts.append(f"# On {other}:\nshardwright join {each.name} --member {first}:{each.port}\n")
    router = description.routers[0]
    parts.append(f"\n# The first user, on {router}, over loopback:\n{first_user_command(description)}\n")
    parts.append("\n# Ports that have to be open:\n")
    for host in description.addresses:
        for port, user in sorted(description.ports_of(host).items()):
            parts.append(f"#   {host} {port} {_openness(user, description)}: {user}\n")
    return "".join(parts)


def first_user_command(description: Description) -> str:
    """Return the command that creates the first user, on the host of a router."""
    tls = "--tls --tlsCAFile /etc/shardwright/ca.pem "
    if description.are_client_certificates_required:
        tls += "--tlsCertificateKeyFile USER.pem "
    return (
        f"mongosh {tls if description.has_tls else ''}--port {description.router_port} admin --eval "
        '\'db.createUser({ user: "root", pwd: passwordPrompt(), roles: ["root"] })\''
    )


def _request_steps(description: Description, host: str) -> str:
    names = " ".join((host, *certificate_names(description, host)))
    return (
        f"#   {host}: shardwright certs request {names} --key {CONFIGURATION}/host.key --out {host}.csr\n"
        f"#     in this folder: shardwright certs sign {host}.csr\n"
        f"#     {host}: cat {host}.crt {CONFIGURATION}/host.key > {CONFIGURATION}/{HOST_CERTIFICATE}\n"
    )


def _router_option(description: Description, each: SetPlan, host: str) -> str:
    if not each.is_shard or host in description.routers:
        return ""
    return f" --router {description.routers[0]}:{description.router_port}"


def _openness(user: str, description: Description) -> str:
    if user == "router":
        return "to clients and all hosts"
    if user.startswith("metrics"):
        return "to the monitoring" if description.has_metrics_on_network else "on loopback only"
    return "to all hosts of the cluster"


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


def read_config_servers(directory: Path) -> tuple[str, ...]:
    """Return the addresses of the config daemons, as this host's router has them; empty if it has no router."""
    path = directory / "router.yaml"
    return tuple(map(str, _read(ROUTER, path).values.configdb.hosts)) if path.exists() else ()


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
    except UnicodeDecodeError as error:
        raise DeployError(f"cannot read {path}: it is not UTF-8") from error
