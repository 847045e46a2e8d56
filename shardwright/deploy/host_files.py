"""The files of each host, made from the description of a cluster."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from shardwright.daemon.configuration.shown import put_path
from shardwright.deploy.description import Description, SetPlan
from shardwright.deploy.host_member import CONFIGURATION
from shardwright.deploy.modes import KEY_FILE, has_key

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


def texts_of(description: Description, host: str) -> dict[str, str]:
    """Return the texts of a host's files by their names in `CONFIGURATION`, without the files with secrets."""
    found = {}
    if host in description.routers:
        found["router.yaml"] = _as_yaml(_router(description, host), description.options.get("router", {}))
    for each in _sets_on(description, host):
        mongod, daemon = _mongod(description, each, host), _daemon(description, each, host)
        found[f"mongod-{each.name}.conf"] = _as_yaml(mongod, description.options.get("mongod", {}))
        found[f"{each.role}-{each.name}.yaml"] = _as_yaml(daemon, description.options.get(each.role, {}))
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
    addresses = f"{_LOOPBACK},{description.addresses[host]}"
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
            "net.bindIp": f"{_LOOPBACK},{description.addresses[host]}",
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
            "storage.dbPath": f"{_DATA}/{each.name}",
            **({} if each.cache_gb is None else {"storage.wiredTiger.engineConfig.cacheSizeGB": each.cache_gb}),
            "systemLog.destination": "file",
            "systemLog.path": f"{_LOGS}/mongod-{each.name}.log",
            "systemLog.logAppend": True,
            "systemLog.logRotate": "reopen",
        }
    )


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


def _as_yaml(document: dict[str, Any], further: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(_merged(document, further), sort_keys=False, allow_unicode=True)
    return HEADER + text


def _merged(document: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Merge further options into a document; they replace its values."""
    result = dict(document)
    for key, value in further.items():
        is_section = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if is_section else value
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
