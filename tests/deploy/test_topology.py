from itertools import count, islice

import pytest

from shardwright.deploy.errors import DeployError
from shardwright.deploy.topology import Role, Size, Topology


def plan(size: Size) -> Topology:
    ports = count(20_000)
    return Topology.plan(size, router_port=lambda index: 27_017 + index, free_ports=lambda _: next(ports))


def test_names_and_starting_order() -> None:
    names = [process.name for process in plan(Size(shards=2, members=2, config_members=1, routers=1)).processes]
    assert names == [
        "config.0.mongod",
        *("shard0.0.mongod", "shard0.1.mongod", "shard1.0.mongod", "shard1.1.mongod"),
        "config.0.configd",
        *("shard0.0.shardd", "shard0.1.shardd", "shard1.0.shardd", "shard1.1.shardd"),
        "router.0",
    ]


def test_no_port_is_used_twice() -> None:
    processes = plan(Size(shards=3, members=3, config_members=3, routers=2)).processes
    ports = [port for process in processes for port in (process.port, process.metrics_port) if port is not None]
    assert len(ports) == len(set(ports))


def test_workers_of_a_router_have_their_own_ports() -> None:
    ports = count(20_000)

    def free_ports(number: int) -> int:
        first, *_ = islice(ports, number)
        return first

    topology = Topology.plan(
        Size(routers=2), router_port=lambda index: 27_017 + index, free_ports=free_ports, workers=3
    )
    taken = [port for process in topology.processes for port in process.ports(3)]
    assert len(taken) == len(set(taken))
    router = topology.named("router.1")
    assert router.metrics_port is not None
    assert router.ports(3) == [27_018, *range(router.metrics_port, router.metrics_port + 3)]
    assert len(topology.named("shard0.0.shardd").ports(3)) == 2
    assert len(topology.named("shard0.0.mongod").ports(3)) == 1


def test_connection_strings_name_daemons() -> None:
    topology = plan(Size(shards=1, members=2, config_members=2, routers=2))
    shardds = ",".join(process.address for process in topology.of_role(Role.SHARDD))
    configds = ",".join(process.address for process in topology.of_role(Role.CONFIGD))
    assert topology.shards == [{"_id": "shard0", "host": f"shard0/{shardds}"}]
    assert topology.config_string == f"config/{configds}"
    assert topology.uri == "mongodb://127.0.0.1:27017,127.0.0.1:27018/"


def test_each_sidecar_has_its_mongod() -> None:
    topology = plan(Size(members=2))
    assert topology.mongod_behind(topology.named("shard1.1.shardd")) is topology.named("shard1.1.mongod")
    assert topology.mongod_behind(topology.named("config.0.configd")) is topology.named("config.0.mongod")


def test_document_round_trip() -> None:
    topology = plan(Size(shards=2, members=3))
    assert Topology.from_document(topology.to_document()) == topology


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(DeployError, match=r"no process is called 'router\.7'; there are .*router\.0"):
        plan(Size()).named("router.7")


def test_size_must_be_positive() -> None:
    with pytest.raises(DeployError, match="--config-members must be at least 1, not 0"):
        Size(config_members=0)


def test_the_mongods_of_an_added_shard_listen_as_the_others_do() -> None:
    ports = count(1000)
    for has_ports in (True, False):
        topology = Topology.plan(
            Size(shards=1),
            router_port=lambda _: next(ports),
            free_ports=lambda _: next(ports),
            mongods_have_ports=has_ports,
        )
        larger = topology.with_shard(2, lambda _: next(ports))
        assert {mongod.port is not None for mongod in larger.of_role(Role.MONGOD)} == {has_ports}
        assert Topology.from_document(larger.to_document()) == larger
    assert larger.named("shard1.1.mongod").ports() == []


def test_a_shard_is_added_under_a_new_name_and_removed_again() -> None:
    ports = count(1000)
    topology = Topology.plan(Size(shards=2), router_port=lambda _: next(ports), free_ports=lambda _: next(ports))
    larger = topology.with_shard(2, lambda _: next(ports))
    assert [shard["_id"] for shard in larger.shards] == ["shard0", "shard1", "shard2"]
    assert [plan.name for plan in larger.of_shard("shard2")] == [
        "shard2.0.mongod",
        "shard2.1.mongod",
        "shard2.0.shardd",
        "shard2.1.shardd",
    ]
    assert larger.size.shards == 3
    roles = [plan.role for plan in larger.processes]
    assert roles == sorted(roles, key=list(Role).index), "in the order in which they start"
    assert set(larger.without_shard("shard2").processes) == set(topology.processes)
    holed = larger.without_shard("shard1")
    assert [shard["_id"] for shard in holed.with_shard(1, lambda _: next(ports)).shards][-1] != "shard2"
    with pytest.raises(DeployError, match="no shard is called 'shard9'; there are shard0, shard1"):
        topology.of_shard("shard9")
