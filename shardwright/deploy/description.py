"""The description of a cluster on several hosts, from which `shardwright plan` makes each host's files.

Unset ports of the config servers and of the first shard are MongoDB's; further shards count up from there. A mongod has
the port of its daemon plus 1000.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from shardwright.daemon.configuration.file import ConfigurationError, nearest_path
from shardwright.daemon.configuration.option import BOOLEAN, COUNT, PORT, ValueType, choice, text_type
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
from shardwright.daemon.option_values import parse_addresses
from shardwright.deploy.modes import KEY_FILE, MODES
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

_FORBIDDEN_IN_NAMES: Final = frozenset("/@: \t'\"\\,")


def _host_name(text: str) -> str:
    """Check a host name."""
    if not text or _FORBIDDEN_IN_NAMES & set(text):
        raise ValueError(f"{text!r} is not a host name")
    return text


def _set_name(text: str) -> str:
    if not text.isascii() or not text.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"{text!r} is not a name of letters, digits, - and _")
    if text == CONFIG_SET:
        raise ValueError(f"{text} is the name of the config servers' set")
    return text


def _address(text: str) -> str:
    if len(parse_addresses(text)) != 1:
        raise ValueError(f"{text!r} is not a single address")
    return text


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.25 <= size <= 10_000:
        raise ValueError(f"{text!r} is not a number from 0.25 to 10000")
    return size


_HOST: Final = Leaf(text_type(_host_name, "HOST"), "a host of `hosts`")
_GIGABYTES: Final = ValueType(_gigabytes, {"type": "number", "minimum": 0.25, "maximum": 10_000}, "GIB")
_SET_KEYS: Final[Mapping[str, Shape]] = {
    "members": Items(_HOST, "the hosts of its members, each with a mongod and a daemon; the first initiates the set"),
    "port": Leaf(PORT, "port of the daemons"),
    "mongodPort": Leaf(PORT, "port of the mongods (default: the daemons' port plus 1000)"),
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
                "port": Leaf(PORT, "port of the routers (default: 27017)"),
                "workers": Leaf(COUNT, "processes of each router (default: 1)"),
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
                    Leaf(text_type(_host_name, "HOST"), "a name or address"),
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
    """

    name: str
    members: tuple[str, ...]
    port: int
    mongod_port: int
    cache_gb: float | None = None

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


def parse_description(text: str, name: str) -> Description:
    """Parse a description.

    Args:
        name: of the file, for errors.

    Raises:
        ConfigurationError: it is not valid; with all mistakes.
    """
    root = read_shape(text, name, SHAPE)
    hosts: dict[str, Located] = root["hosts"].value
    mistakes = [*_unknown_hosts(root, hosts)]
    addresses = {host: located.value for host, located in hosts.items()}
    for host, located in hosts.items():
        if list(addresses.values()).count(located.value) > 1:
            mistakes.append(f"{located.where}: hosts.{host}: another host has the address {located.value} too")
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
    mistakes += _taken_ports(description, name)
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
    return SetPlan(name, _hosts_in(section), port, mongod_port, section.get("cacheGB"))


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


def _taken_ports(description: Description, name: str) -> Iterator[str]:
    for host in description.addresses:
        users: dict[int, str] = {}
        for port, user in _ports(description, host):
            if port in users:
                yield f"{name}: on {host}, {users[port]} and {user} have the same port {port}"
            users[port] = user


def _ports(description: Description, host: str) -> Iterator[tuple[int, str]]:
    if host in description.routers:
        yield description.router_port, "router"
        for worker in range(description.workers):
            yield description.router_metrics_port + worker, f"metrics of router worker {worker}"
    for each in description.sets:
        if host in each.members:
            yield each.port, f"{each.role} of {each.name}"
            yield each.mongod_port, f"mongod of {each.name}"
            yield each.metrics_port, f"metrics of {each.role} of {each.name}"
