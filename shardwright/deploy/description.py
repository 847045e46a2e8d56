"""The description of a cluster on several hosts, from which `shardwright plan` makes each host's files.

Unset ports of the config servers and of the first shard are MongoDB's; further shards count up from there. A mongod has
the port of its daemon plus 1000.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import count
from typing import Any, Final

from shardwright.daemon.configuration.file import ConfigurationError, nearest_path
from shardwright.daemon.configuration.option import BOOLEAN, ValueType, choice, text_type
from shardwright.daemon.configuration.reference import schema as schema_of_program
from shardwright.daemon.configuration.shape import (
    Anything,
    Items,
    Leaf,
    Located,
    Named,
    OptionsOf,
    Section,
    Shape,
    read_shape,
    shape_schema,
)
from shardwright.daemon.configuration.table import CONFIGD, ROUTER, SHARDD
from shardwright.daemon.option_values import parse_host_name, parse_port
from shardwright.deploy.access import KEY_FILE, MODES
from shardwright.deploy.authority import parse_common_name
from shardwright.deploy.topology import CONFIG_SET

ISSUED: Final = "issued"
REQUESTED: Final = "requested"
_FIRST_SHARD_PORT: Final = 27018
_CONFIG_PORT: Final = 27019
_ROUTER_PORT: Final = 27017
_MONGOD_PORTS_AFTER: Final = 1000
_ROUTER_METRICS_BEFORE: Final = 17801
_METRICS_BEFORE: Final = 17718
"""Difference between the port of a daemon and the port of its metrics: a daemon on 27018 has 9300.

For a router on 27017 it is 9216; further workers count up from there.
"""

_PORT_MAX: Final = 65535

AUTHORITY_FOLDER: Final = "authority"
CLUSTER_KEY: Final = "cluster-key"
STEPS: Final = "steps.txt"
_NAMES_OF_THE_PLAN: Final = frozenset((AUTHORITY_FOLDER, CLUSTER_KEY, STEPS))
"""The names beside the folders of the hosts."""
_PLANNED_OPTIONS: Final = {
    "net.port": "`port` and `mongodPort`",
    "replication.replSetName": "the names of the sets",
    "sharding.configDB": "`config`",
    "security.clusterAuthMode": "`security.clusterAuthMode`",
}
"""Options on which several processes have to agree, with the keys of a description that decide them."""
_SET_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)


def _host_name(text: str) -> str:
    """Check the name of a host, which is also the name of its folder and the common name of its certificate."""
    if ":" in text:
        raise ValueError(f"{text!r} is not a host name: give the host a name, with the IPv6 address as its value")
    if text.lower() in _NAMES_OF_THE_PLAN:
        raise ValueError(f"{text} cannot be the name of a host: the plan has a file or folder of that name")
    return parse_common_name(_name_or_ipv4(text))


def _name_or_ipv4(text: str) -> str:
    try:
        found = IPv4Address(text)
    except ValueError:
        return parse_host_name(text)
    return _reachable(found)


def _reachable(address: IPv4Address | IPv6Address) -> str:
    if address.is_unspecified or address.is_multicast or getattr(address, "scope_id", None) is not None:
        raise ValueError(f"'{address}' is not an address at which other hosts reach this one")
    return str(address)


def _set_name(text: str) -> str:
    if not _SET_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name of at most 64 letters, digits, - and _, not beginning with -")
    if text == CONFIG_SET:
        raise ValueError(f"{text} is the name of the config servers' set")
    return text


def _address(text: str) -> str:
    """Parse an address in its usual form, or a host name."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "," in text:
        raise ValueError(f"{text!r} is not a single address")
    try:
        found = ip_address(bare)
    except ValueError:
        return parse_host_name(text)
    return _reachable(found)


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.25 <= size <= 10_000:
        raise ValueError(f"{text!r} is not a number from 0.25 to 10000")
    return size


_PORT: Final = ValueType(
    partial(parse_port, port_min=1), {"type": "integer", "minimum": 1, "maximum": _PORT_MAX}, "PORT"
)
_HOST: Final = Leaf(text_type(_host_name, "HOST"), "a host of `hosts`")
_GIGABYTES: Final = ValueType(_gigabytes, {"type": "number", "minimum": 0.25, "maximum": 10_000}, "GIB")
_SET_KEYS: Final[Mapping[str, Shape]] = {
    "members": Items(_HOST, "the hosts of its members, each with a mongod and a daemon; the first initiates the set"),
    "port": Leaf(_PORT, "port of the daemons"),
    "mongodPort": Leaf(_PORT, "port of the mongods (default: the daemons' port plus 1000)"),
    "cacheGB": Leaf(_GIGABYTES, "cache of each mongod in GiB (default: half of the memory of its host)"),
}
SHAPE: Final = Section(
    {
        "hosts": Named(
            Leaf(text_type(_address, "ADDRESS"), "address of the host on the cluster's network"),
            "the hosts by the names under which all others and the clients reach them",
            _host_name,
        ),
        "config": Section(_SET_KEYS, "the config servers", ("members",)),
        "shards": Named(Section(_SET_KEYS, "a shard", ("members",)), "the shards by their names", _set_name),
        "routers": Section(
            {
                "members": Items(_HOST, "the hosts with a router"),
                "port": Leaf(_PORT, "port of the routers (default: 27017)"),
                "workers": Leaf(ROUTER.option("workers").type, "processes of each router (default: 1)"),
            },
            "the routers",
            ("members",),
        ),
        "security": Section(
            {
                "tls": Leaf(BOOLEAN, "use TLS for all connections (default: true)"),
                "clusterAuthMode": Leaf(
                    choice({mode: mode for mode in MODES}),
                    "how the processes recognise each other (default: keyFile)",
                ),
                "certificates": Leaf(
                    choice({ISSUED: ISSUED, REQUESTED: REQUESTED}),
                    "issued: here, with their keys; requested: keys stay on the hosts, which request certificates "
                    "(default: issued)",
                ),
                "clientCertificates": Leaf(
                    choice({"optional": "optional", "required": "required"}),
                    "whether clients of the routers need a certificate (default: optional)",
                ),
                "clientNames": Items(
                    Leaf(text_type(_address, "HOST"), "a name or address"),
                    "further names of the routers, such as a load balancer's, for the certificates",
                ),
            },
            "access control is always on",
        ),
        "metricsOnNetwork": Leaf(
            BOOLEAN, "serve metrics on the hosts' addresses too, without TLS and to anyone (default: false)"
        ),
        "options": Section(
            {
                "router": OptionsOf(ROUTER, "further options of the routers, as in their files"),
                "shardd": OptionsOf(SHARDD, "further options of the shard daemons"),
                "configd": OptionsOf(CONFIGD, "further options of the config daemons"),
                "mongod": Anything("further options of the mongods, as in their files"),
            },
            "options that the rest does not cover",
        ),
    },
    "the description of a cluster for `shardwright plan`",
    ("hosts", "config", "shards", "routers"),
)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a description."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "shardwright plan",
        **shape_schema(SHAPE, schema_of_program),
    }


@dataclass(frozen=True, slots=True)
class SetPlan:
    """One replica set.

    Attributes:
        members: hosts; the first one initiates it.
        cache_gb: of each mongod; None for MongoDB's default.
        is_port_counted: whether the port results from the place of the set in the description.
    """

    name: str
    members: tuple[str, ...]
    port: int
    mongod_port: int
    cache_gb: float | None = None
    is_port_counted: bool = False

    @property
    def is_shard(self) -> bool:
        """Whether the set is a shard, not the config servers."""
        return self.name != CONFIG_SET

    @property
    def role(self) -> str:
        """The role of the set's daemons."""
        return "shardd" if self.is_shard else "configd"

    @property
    def metrics_port(self) -> int:
        """The port of the daemons' metrics."""
        return self.port - _METRICS_BEFORE


@dataclass(frozen=True, slots=True)
class Description:
    """A cluster.

    Attributes:
        addresses: of the hosts, by their names.
        sets: the config servers first.
        routers: hosts.
        options: further options by role.
    """

    addresses: dict[str, str]
    sets: tuple[SetPlan, ...]
    routers: tuple[str, ...]
    router_port: int
    workers: int
    has_tls: bool
    cluster_auth_mode: str
    are_certificates_issued: bool
    are_client_certificates_required: bool
    client_names: tuple[str, ...]
    has_metrics_on_network: bool
    options: dict[str, dict[str, Any]]

    @property
    def has_ipv6(self) -> bool:
        """Whether a host has an IPv6 address, so that all mongods need IPv6."""
        return any(map(is_ipv6, self.addresses.values()))

    @property
    def config_string(self) -> str:
        """The value of ``sharding.configDB``."""
        config = self.sets[0]
        return f"{config.name}/{','.join(f'{host}:{config.port}' for host in config.members)}"

    @property
    def router_metrics_port(self) -> int:
        """The port of the first worker's metrics."""
        return self.router_port - _ROUTER_METRICS_BEFORE

    def ports_of(self, host: str) -> dict[int, str]:
        """Return the listeners of a host, by port."""
        return dict(_ports(self, host))


def is_ipv6(address: str) -> bool:
    """Whether an address is an IPv6 address."""
    try:
        return bool(IPv6Address(address))
    except ValueError:
        return False


def parse_description(text: str, name: str) -> Description:
    """Parse a description.

    Args:
        name: of the file, for errors.

    Raises:
        ConfigurationError: it is not valid: with all mistakes of its form, or else with all contradictions.
    """
    root = read_shape(text, name, SHAPE)
    hosts: dict[str, Located] = root["hosts"].value
    mistakes = [*_unknown_hosts(root, hosts)]
    addresses = {host: located.value for host, located in hosts.items()}
    for host, located in hosts.items():
        if list(addresses.values()).count(located.value) > 1:
            mistakes.append(f"{located.where}: hosts.{host}: another host has the address {located.value} too")
        if [each.lower() for each in hosts].count(host.lower()) > 1:
            mistakes.append(f"{located.where}: hosts.{host}: another host has the same name in other letters")
    security = root["security"] if "security" in root.value else Located({}, root.where)
    description = Description(
        addresses=addresses,
        sets=tuple(_sets(root)),
        routers=_hosts_in(root["routers"]),
        router_port=root["routers"].get("port", _ROUTER_PORT),
        workers=root["routers"].get("workers", 1),
        has_tls=security.get("tls", True),
        cluster_auth_mode=security.get("clusterAuthMode", KEY_FILE),
        are_certificates_issued=security.get("certificates", ISSUED) == ISSUED,
        are_client_certificates_required=security.get("clientCertificates", "optional") == "required",
        client_names=tuple(each.value for each in security.get("clientNames", ())),
        has_metrics_on_network=root.get("metricsOnNetwork", False),
        options={role: located.value for role, located in root.get("options", {}).items()},
    )
    if description.cluster_auth_mode != KEY_FILE and not description.has_tls:
        where = security["clusterAuthMode"].where
        mistakes.append(f"{where}: security.clusterAuthMode: {description.cluster_auth_mode} needs security.tls")
    mistakes += _wrong_ports(description, name)
    mistakes += _planned_options(root)
    if mistakes:
        raise ConfigurationError(mistakes)
    return description


def _sets(root: Located) -> Iterator[SetPlan]:
    yield _set(CONFIG_SET, root["config"], _CONFIG_PORT)
    free = (port for port in count(_FIRST_SHARD_PORT) if port != _CONFIG_PORT)
    for name, shard in root["shards"].value.items():
        yield _set(name, shard, next(free))


def _set(name: str, section: Located, default_port: int) -> SetPlan:
    port = section.get("port", default_port)
    mongod_port = section.get("mongodPort", port + _MONGOD_PORTS_AFTER)
    return SetPlan(name, _hosts_in(section), port, mongod_port, section.get("cacheGB"), "port" not in section.value)


def _hosts_in(section: Located) -> tuple[str, ...]:
    return tuple(each.value for each in section["members"].value)


def _unknown_hosts(root: Located, hosts: Iterable[str]) -> Iterator[str]:
    sections = [("config", root["config"]), ("routers", root["routers"])]
    sections += [(f"shards.{name}", shard) for name, shard in root["shards"].value.items()]
    known = set(hosts)
    for path, section in sections:
        seen: set[str] = set()
        for member in section["members"].value:
            if member.value in seen:
                yield f"{member.where}: {path}.members has {member.value} twice"
            seen.add(member.value)
            if member.value not in known:
                nearest = nearest_path(member.value, known)
                hint = f"; did you mean {nearest}?" if nearest else ""
                yield f"{member.where}: {path}.members: no host is called {member.value}{hint}"


def _wrong_ports(description: Description, name: str) -> Iterator[str]:
    for host in description.addresses:
        users: dict[int, str] = {}
        for port, user in _ports(description, host):
            if port in users:
                yield f"{name}: on {host}, {users[port]} and {user} have the same port {port}"
            if not 1 <= port <= _PORT_MAX:
                yield f"{name}: on {host}, the port {port} of {user} is not from 1 to {_PORT_MAX}: choose another"
            users[port] = user


def _planned_options(root: Located) -> Iterator[str]:
    for role, located in root.get("options", {}).items():
        for path, key in _PLANNED_OPTIONS.items():
            section, _, name = path.rpartition(".")
            found = located.value.get(section)
            if isinstance(found, Mapping) and name in found:
                yield f"{located.where}: options.{role}.{path}: {key} of this file decide it for all processes"


def _ports(description: Description, host: str) -> Iterator[tuple[int, str]]:
    if host in description.routers:
        yield description.router_port, "router"
        first = _metrics_port(description, "router", description.router_metrics_port)
        for worker in range(description.workers):
            yield first + worker, f"metrics of router worker {worker}"
    for each in description.sets:
        if host in each.members:
            yield each.port, f"{each.role} of {each.name}"
            yield each.mongod_port, f"mongod of {each.name}"
            yield _metrics_port(description, each.role, each.metrics_port), f"metrics of {each.role} of {each.name}"


def _metrics_port(description: Description, role: str, default: int) -> int:
    """Return the port in the further options of a role, otherwise the default."""
    metrics = description.options.get(role, {}).get("shardwright", {}).get("metrics", {})
    return int(metrics.get("port", default))
