import socket

import pytest

from shardwright.deploy.errors import DeployError
from shardwright.deploy.ports import ENVIRONMENT_VARIABLE, FREE_PORTS, PortReservation, ports_to_choose_from
from shardwright.deploy.topology import LOOPBACK


def test_free_ports_are_distinct_and_outside_the_ephemeral_range() -> None:
    with PortReservation() as ports:
        chosen = [ports.hold_free() for _ in range(20)]
    assert len(set(chosen)) == 20
    assert all(port in FREE_PORTS for port in chosen)


def test_held_port_is_not_chosen_by_another() -> None:
    with PortReservation() as ours, PortReservation() as others:
        port = ours.hold_free()
        assert others.hold_free(preferred=[port]) != port


def test_consecutive_ports_are_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ports_to_choose_from().start
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, f"{start}-{start + 39}")
    with PortReservation() as ours, PortReservation() as others:
        first = ours.hold_free_run(5)
        for port in range(first, first + 5):
            with pytest.raises(DeployError):
                others.hold(port)
        free = others.hold_free_run(1)
        others.release(free)
        with pytest.raises(DeployError, match="no 40 ports in a row are free"):
            others.hold_free_run(40)
        ours.hold(free)  # ports of failed attempts are no longer held


def choose_from_free_ports(monkeypatch: pytest.MonkeyPatch, count: int) -> range:
    """Have ports chosen from ``count`` in a row that are free; returns them."""
    with PortReservation() as ports:
        first = ports.hold_free_run(count)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, f"{first}-{first + count - 1}")
    return range(first, first + count)


def test_a_port_is_chosen_again_only_after_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process for which it was released need not listen yet."""
    free = choose_from_free_ports(monkeypatch, 10)
    chosen = []
    for _ in range(20):
        with PortReservation() as ports:
            chosen.append(ports.hold_free())
    assert set(chosen[:10]) == set(free)
    assert chosen[10:] == chosen[:10]


def test_ports_in_a_row_are_not_those_chosen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_from_free_ports(monkeypatch, 12)
    chosen = set[int]()
    for _ in range(20):
        with PortReservation() as ports:
            first = ports.hold_free_run(3)
        row = set(range(first, first + 3))
        assert not row & chosen
        chosen = row


def test_the_environment_names_the_ports_to_choose_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "21000-21009")
    with PortReservation() as ports:
        assert ports.hold_free() in range(21_000, 21_010)
    for wrong in ("", "21000", "0-10", "21001-21000", "21000-65536", "21000-x", "-1-5"):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, wrong)
        with PortReservation() as ports, pytest.raises(DeployError, match=f"SHARDWRIGHT_PORTS={wrong} is not"):
            ports.hold_free()


def test_released_port_can_be_listened_on() -> None:
    with PortReservation() as ports:
        port = ports.hold_free()
        ports.release(port)
        with socket.create_server((LOOPBACK, port)):
            pass


def test_port_in_use_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, PortReservation() as ports:
        port = server.getsockname()[1]
        with pytest.raises(DeployError, match=f"port {port} on 127.0.0.1 is in use"):
            ports.hold(port)


def test_port_of_a_stopped_server_can_be_held() -> None:
    """Its last connection is in TIME_WAIT, which must not prevent a cluster from restarting."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    with PortReservation() as ports:
        ports.hold(port)


def test_preferred_port_beyond_the_last_one_is_not_taken() -> None:
    with PortReservation() as ports:
        assert ports.hold_free(preferred=[65_536]) in FREE_PORTS
