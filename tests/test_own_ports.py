"""Ports of each of the processes that run tests."""

from itertools import chain

import pytest

from shardwright.deploy.ports import FREE_PORTS
from tests.own_ports import ports_of


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_no_port_is_for_two(count: int) -> None:
    shares = [ports_of(number, count) for number in range(count)]
    ports = list(chain.from_iterable(shares))
    assert len(ports) == len(set(ports))
    assert set(ports) <= set(FREE_PORTS)
    assert min(map(len, shares)) == len(FREE_PORTS) // count
    assert ports_of(count, count) == shares[0]
