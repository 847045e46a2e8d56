"""Addresses of servers, and connection strings of replica sets, as mongod reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.host_and_port import PORT_MAX, ConnectionString, HostAndPort
from tests.wire.malformed_addresses import MALFORMED_ADDRESSES, MALFORMED_CONNECTION_STRINGS

NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
HOST_NAMES = st.one_of(NAMES, st.ip_addresses().map(str))
MEMBERS = st.builds(HostAndPort, HOST_NAMES, st.integers(1, PORT_MAX))
SOCKETS = NAMES.map(lambda name: HostAndPort(f"/tmp/{name}.sock", 0))
REPLICA_SETS = st.builds(ConnectionString, NAMES, st.lists(MEMBERS, min_size=1, max_size=5).map(tuple))
LONE_SERVERS = st.one_of(MEMBERS, SOCKETS).map(lambda server: ConnectionString("", (server,)))
TEXTS = st.text(st.one_of(st.sampled_from('[]:/,.+-019ah"\\ '), st.characters()), max_size=20)


@given(st.one_of(MEMBERS, SOCKETS))
def test_an_address_is_read_as_it_was_written(server: HostAndPort) -> None:
    assert HostAndPort.parse(str(server)) == server


@given(st.one_of(REPLICA_SETS, LONE_SERVERS))
def test_a_connection_string_is_read_as_it_was_written(servers: ConnectionString) -> None:
    assert ConnectionString.parse(str(servers)) == servers
    assert ConnectionString.parse(str(servers), default_port=None) == servers


@given(TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        servers = ConnectionString.parse(text)
    except CommandError as error:
        code = error.code
    else:
        assert all(host.host for host in servers.hosts)
        return
    assert code in (ErrorCode.FailedToParse, ErrorCode.Overflow)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", HostAndPort("h", 27017)),
        ("h:1", HostAndPort("h", 1)),
        ("h:+01", HostAndPort("h", 1)),
        ("[::1]", HostAndPort("::1", 27017)),
        ("[fe80::1%lo]:5", HostAndPort("fe80::1%lo", 5)),
        ("/tmp/x.sock", HostAndPort("/tmp/x.sock", 0)),
        ("/tmp/x.sock:5", HostAndPort("/tmp/x.sock", 0)),
    ],
)
def test_forms_of_addresses(text: str, expected: HostAndPort) -> None:
    assert HostAndPort.parse(text) == expected


def test_a_port_may_be_required_or_have_another_default() -> None:
    assert HostAndPort.parse("h", default_port=27019).port == 27019
    with pytest.raises(CommandError, match='No port in "h"'):
        HostAndPort.parse("h", default_port=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("/tmp/x.sock", True),
        ("LOCALHOST:1", False),
        ("localhost.:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_servers_of_this_machine_alone(text: str, expected: bool) -> None:
    assert HostAndPort.parse(text).is_localhost is expected


@pytest.mark.parametrize("text", MALFORMED_ADDRESSES)
def test_what_is_no_address_is_refused_as_mongod_does(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        HostAndPort.parse(text)
    assert (refused.value.code, refused.value.message) == (ErrorCode.FailedToParse, MALFORMED_ADDRESSES[text])


@pytest.mark.parametrize("text", ["h:2147483648", "h:-2147483649", f"h:{'9' * 5000}"])
def test_ports_that_are_no_integers_of_32_bits_overflow(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        HostAndPort.parse(text)
    assert (refused.value.code, refused.value.message) == (ErrorCode.Overflow, "Overflow")


@pytest.mark.parametrize("text", MALFORMED_CONNECTION_STRINGS)
def test_what_is_no_connection_string_is_refused(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        ConnectionString.parse(text)
    assert (refused.value.code, refused.value.message) == (ErrorCode.FailedToParse, MALFORMED_CONNECTION_STRINGS[text])


@pytest.mark.parametrize("text", ["set/h:1/x", "set/a,/b"])
def test_what_mongod_takes_for_another_set_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="Must specify set name"):
        ConnectionString.parse(text)


def test_ports_are_always_written() -> None:
    servers = ConnectionString.parse("set/one,two:27018,[::1]:27019")
    assert servers.set_name == "set"
    assert servers.addresses == ("one:27017", "two:27018", "[::1]:27019")
    assert str(servers) == "set/one:27017,two:27018,[::1]:27019"
