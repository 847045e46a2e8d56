"""The mongod behind a sidecar, and the other members of its set."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from shardwright.daemon.sidecar.mongod import LocalMongod

if TYPE_CHECKING:
    from shardwright.wire.transport.pool import ConnectionPools


class PoolsByName:
    """Pools that know their addresses."""

    def __getitem__(self, address: str) -> SimpleNamespace:
        return SimpleNamespace(address=address)


def reached(own: str, member: str) -> str:
    mongod = LocalMongod(cast("ConnectionPools", PoolsByName()), "/run/s/m.sock", own)
    return mongod.pool_of_member(member).address


def test_a_member_is_reached_where_the_configuration_says() -> None:
    assert reached("a:1", "b:2") == "b:2"


def test_the_socket_of_a_member_is_beside_that_of_the_own_mongod() -> None:
    assert reached("./m.sock", "./n.sock") == "/run/s/./n.sock"
    assert reached("/run/s/m.sock", "/run/t/n.sock") == "/run/t/n.sock"


def test_the_own_mongod_is_reached_by_its_socket() -> None:
    assert reached("./m.sock", "./m.sock") == reached("a:1", "a:1") == "/run/s/m.sock"
