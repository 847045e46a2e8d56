"""Addresses, host lists and the options of every daemon."""

from argparse import Namespace
from pathlib import Path
from socket import gethostname

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.daemon.configuration.configuration import configuration
from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.table import COMMON, ROUTER
from shardwright.daemon.logs import LogFormat, LogRotation
from shardwright.daemon.option_values import (
    check_exposure,
    known_address,
    parse_host_and_port,
    parse_replica_set,
    parse_seconds,
)
from shardwright.daemon.run import unread_bounds
from shardwright.wire.host_and_port import ConnectionString, HostAndPort
from shardwright.wire.tls import TlsMode
from shardwright.wire.transport.reservations import UnreadBounds

PROGRAM = Program.of("toy", "A daemon for tests.", 27017, COMMON)


def parsed(*words: str) -> Namespace:
    """The options of a daemon with this command line."""
    return configuration(PROGRAM, words, {}).values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:27017", HostAndPort("localhost", 27017)),
        ("10.0.0.1:1", HostAndPort("10.0.0.1", 1)),
        ("[::1]:27019", HostAndPort("::1", 27019)),
        ("db-1.example.net:65535", HostAndPort("db-1.example.net", 65535)),
    ],
)
def test_an_address_is_read_and_written_back(text: str, expected: HostAndPort) -> None:
    assert parse_host_and_port(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        ":1",
        "h:",
        "h:0",
        "h:65536",
        "h:-1",
        "h:x",
        "h:\uff11",
        "::1:5",
        "[::1]",
        "[::1:5",
        "[]:5",
        "[::1]5",
        "a b:1",
        "a/b:1",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'"):
        parse_host_and_port(text)


def test_a_replica_set_is_read_and_written_back() -> None:
    text = "cfg/a:27019,[::1]:27020"
    hosts = parse_replica_set(text)
    assert hosts == ConnectionString("cfg", (HostAndPort("a", 27019), HostAndPort("::1", 27020)))
    assert str(hosts) == text


@pytest.mark.parametrize(
    "text", ["", "cfg", "cfg/", "/a:1", "a:1", "a:1,b:1", "cfg/a:1,", "cfg/a:1,a:1", "cfg/a", "cfg/a b:1"]
)
def test_an_invalid_replica_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'"):
        parse_replica_set(text)


@given(st.text(max_size=20))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_host_and_port(text)
    except ValueError:
        return
    assert parse_host_and_port(str(address)) == address


def test_daemon_options_have_defaults() -> None:
    assert vars(parsed()) == {
        "advertise": None,
        "pid_file": None,
        "log_format": LogFormat.JSON,
        "bind_ip": ("127.0.0.1",),
        "port": 27017,
        "unix_socket_directory": None,
        "key_file": None,
        "cluster_auth_mode": None,
        "noauth": False,
        "tls_mode": TlsMode.DISABLED,
        "tls_certificate_key_file": None,
        "tls_certificate_key_file_password_file": None,
        "tls_ca_file": None,
        "tls_crl_file": None,
        "tls_cluster_file": None,
        "tls_cluster_password_file": None,
        "tls_cluster_ca_file": None,
        "tls_disabled_protocols": frozenset(),
        "tls_x509_cluster_auth_dn_override": (),
        "tls_x509_expiration_warning_threshold_days": 30,
        "tls_allow_connections_without_certificates": False,
        "tls_allow_invalid_certificates": False,
        "tls_allow_invalid_hostnames": False,
        "max_connections": None,
        "handshakes_max": None,
        "metrics_port": None,
        "metrics_bind_ip": ("127.0.0.1",),
        "log_level": "info",
        "log_file": None,
        "log_rotate": LogRotation.RENAME,
        "slow_ms": 100,
        "redact_client_log_data": False,
        "unread_reply_mb": 256,
        "unread_reply_mb_per_client": 32,
        "unread_reply_seconds": 10,
        "shutdown_seconds": None,
        "hello_seconds": 10.0,
        "selection_seconds": 20.0,
        "log_in_seconds": 30.0,
        "idle_seconds_before_log_in": 600.0,
        "message_bytes_before_log_in": 16_384,
        "failed_log_ins": 3,
    }


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("127.0.0.1,[::1],localhost", False),
        ("127.0.0.1,192.0.2.1", True),
        ("0.0.0.0", True),
        ("::", True),
        ("db.example", True),
        ("0.0.0.0 --noauth", False),
        ("0.0.0.0 --key-file key", False),
    ],
)
def test_an_open_daemon_stays_on_its_machine(text: str, is_refused: bool) -> None:
    options = parsed("--bind-ip", *text.split())
    if is_refused:
        with pytest.raises(ValueError, match="without access control"):
            check_exposure(options)
    else:
        check_exposure(options)


def test_limits_are_parsed() -> None:
    given_options = ["--unread-reply-mb", "64", "--unread-reply-mb-per-client", "8", "--unread-reply-seconds", "3"]
    options = parsed(*given_options, "--shutdown-seconds", "0.5", "--selection-seconds", "30")
    assert unread_bounds(options) == UnreadBounds(64 << 20, 8 << 20, 3.0)
    assert (options.shutdown_seconds, options.selection_seconds) == (0.5, 30.0)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "ten"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds"):
        parse_seconds(text)


def test_daemon_options_are_parsed() -> None:
    given_options = ["--bind-ip", "::", "--port", "0", "--metrics-port", "9216", "--log-level", "debug"]
    given_options += ["--log-file", "/tmp/x.log", "--slow-ms", "5", "--configdb", "cfg/h:1"]
    options = configuration(ROUTER, given_options, {}).values
    assert (options.bind_ip, options.port, options.metrics_port) == (("::",), 0, 9216)
    assert (options.log_level, options.log_file, options.slow_ms) == ("debug", Path("/tmp/x.log"), 5)
    assert options.configdb == ConnectionString("cfg", (HostAndPort("h", 1),))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("::1", ("::1",)),
        ("[::1]", ("::1",)),
        ("127.0.0.1, [fe80::1%lo]", ("127.0.0.1", "fe80::1%lo")),
        ("localhost", ("localhost",)),
    ],
)
def test_addresses_are_read_with_or_without_brackets(text: str, addresses: tuple[str, ...]) -> None:
    assert parsed("--bind-ip", text).bind_ip == addresses


def test_known_address_of_ipv6_has_brackets() -> None:
    assert known_address(parsed("--bind-ip", "[::1]")) == "[::1]:27017"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", "127.0.0.1:27017"),
        ("--bind-ip 127.0.0.1,10.0.0.3", "10.0.0.3:27017"),
        ("--bind-ip localhost,::1,fd00::3 --port 5", "[fd00::3]:5"),
        ("--bind-ip 127.0.0.1,0.0.0.0", f"{gethostname()}:27017"),
        ("--bind-ip 0.0.0.0 --advertise db.example.net", "db.example.net:27017"),
        ("--bind-ip 10.0.0.3 --advertise [fd00::3]:1234", "[fd00::3]:1234"),
    ],
)
def test_known_address_is_one_that_others_reach(given: str, address: str) -> None:
    assert known_address(parsed(*given.split())) == address


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--bind-ip", "[::1", "'[::1' is not a list of addresses such as 127.0.0.1,[::1]"),
        ("--bind-ip", "127.0.0.1,,::1", "is not a list of addresses"),
        ("--log-rotate", "remove", "invalid choice: 'remove'"),
        ("--port", "65536", "'65536' is not a port from 0 to 65535"),
        ("--advertise", "0.0.0.0", "'0.0.0.0' is not an address that others can reach"),
        ("--advertise", "a b:1", "'a b:1' has no valid host name"),
        ("--metrics-port", "x", "'x' is not a port"),
        ("--slow-ms", "-1", "argument --slow-ms"),
        ("--slow-ms", "1.5", "'1.5' is not a number of milliseconds"),
        ("--slow-ms", "9" * 10, "argument --slow-ms: not below 1000000000"),
        ("--max-connections", "9" * 5000, "argument --max-connections: not below 1000000000"),
        ("--unread-reply-seconds", "9" * 400, "argument --unread-reply-seconds: not below 1000000000"),
        ("--shutdown-seconds", "1e300", "argument --shutdown-seconds: more than 1000000000 seconds"),
        ("--port", "9" * 5000, "is not a port from 0 to 65535"),
        ("--log-level", "loud", "invalid choice: 'loud'"),
    ],
)
def test_a_wrong_option_is_explained(
    option: str, value: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(option, value)
    assert complaint in capsys.readouterr().err
