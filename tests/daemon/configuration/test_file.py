"""Files of options: MongoDB's form, and mistakes with their lines."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from shardwright.daemon.configuration.file import ConfigurationError, FileValue, compose, options_of
from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.table import CONFIGD, PROGRAMS, ROUTER, SHARDD

MONGOS = """\
# as mongos's own documentation shows it
systemLog:
  destination: file
  path: /var/log/mongos.log
  logAppend: true
  quiet: false
  verbosity: 1
net:
  port: 27017
  bindIp: 127.0.0.1,10.0.0.5
  maxIncomingConnections: 500
  tls:
    mode: requireTLS
    certificateKeyFile: /etc/ssl/mongos.pem
    CAFile: /etc/ssl/ca.pem
security:
  keyFile: /etc/key
setParameter:
  enableTestCommands: 1
  quiet: true
sharding:
  configDB: cfg/a:27019,b:27019
processManagement:
  fork: false
  pidFilePath: /run/mongos.pid
  timeZoneInfo: /usr/share/zoneinfo
shardwright:
  workers: 2
"""


def parse_text(
    text: str, name: str, program: Program, others: Iterable[Program] = ()
) -> Mapping[str, Sequence[FileValue]]:
    """The options in a file without mistakes."""
    root = compose(text, name)
    if root is None:
        return {}
    found = options_of(root, name, program, others)
    if found.mistakes:
        raise ConfigurationError(found.mistakes)
    return found.values


def test_a_file_of_mongos_is_understood() -> None:
    found = parse_text(MONGOS, "mongos.conf", ROUTER)
    assert found["log-file"] == [FileValue("/var/log/mongos.log", "mongos.conf:4")]
    assert found["set-parameter"] == [
        FileValue("enableTestCommands=1", "mongos.conf:19"),
        FileValue("quiet=true", "mongos.conf:20"),
    ]
    assert {name: values[0].text for name, values in found.items() if name != "set-parameter"} == {
        "log-file": "/var/log/mongos.log",
        "log-level": "1",
        "port": "27017",
        "bind-ip": "127.0.0.1,10.0.0.5",
        "max-connections": "500",
        "tls-mode": "requireTLS",
        "tls-certificate-key-file": "/etc/ssl/mongos.pem",
        "tls-ca-file": "/etc/ssl/ca.pem",
        "key-file": "/etc/key",
        "configdb": "cfg/a:27019,b:27019",
        "pid-file": "/run/mongos.pid",
        "workers": "2",
    }


@pytest.mark.parametrize("text", ["", "# only a comment\n", "net:\n"])
def test_a_file_may_set_nothing(text: str) -> None:
    assert parse_text(text, "x.yaml", ROUTER) == {}


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("net:\n  prot: 1\n", ["x.yaml:2: unknown key net.prot; did you mean net.port?"]),
        ("net:\n  BindIP: 1\n", ["x.yaml:2: unknown key net.BindIP; did you mean net.bindIp?"]),
        ("\nnets:\n  port: 1\n", ["x.yaml:2: unknown key nets; did you mean net?"]),
        ("net:\n  keyFile: k\n", ["x.yaml:2: unknown key net.keyFile; did you mean security.keyFile?"]),
        ("storage:\n  x: 1\n", ["x.yaml:1: unknown key storage"]),
        ("replication:\n  x: 1\n", ["x.yaml:2: unknown key replication.x"]),
        ("net:\n  port: 1\n  port: 2\n", ["x.yaml:3: net.port is given twice"]),
        ("net.port: 1\nnet:\n  port: 2\n", ["x.yaml:3: net.port is given twice"]),
        ("net:\n  port: 1\nnet.port: 2\n", ["x.yaml:3: net.port is given twice"]),
        ("setParameter.quiet: true\nsetParameter:\n  quiet: true\n", ["x.yaml:3: setParameter.quiet is given twice"]),
        ("net:\n  port:\n", ["x.yaml:2: net.port has no value"]),
        ("net:\n  port: [1]\n", ["x.yaml:2: net.port has to be a single value"]),
        ("net: 1\n", ["x.yaml:1: net has to be a section with keys"]),
        ("- net\n", ["x.yaml:1: the file has to consist of keys and values"]),
        ("net:\n\tport: 1\n", ["x.yaml:2: found character '\\t' that cannot start any token"]),
        ("net: {port: 1\n", ["x.yaml:2: expected ',' or '}', but got '<stream end>'"]),
        ("shardwright:\n  noauth: 1\n", ["x.yaml:2: shardwright.noauth has to be true or false"]),
        ("net:\n  tls:\n    mode:\n      __exec: x\n", ["x.yaml:3: net.tls.mode is not expanded by __exec or __rest"]),
        ("__rest: x\n", ["x.yaml:1: unknown key __rest: nothing is expanded here"]),
        (
            "processManagement:\n  fork: true\n",
            [
                "x.yaml:2: processManagement.fork cannot be true: daemons stay in the foreground: start them with a "
                "service manager"
            ],
        ),
        (
            "net:\n  tls:\n    clusterPassword: secret\n",
            [
                "x.yaml:3: net.tls.clusterPassword: a password stands in a file of its own: give "
                "net.tls.clusterPasswordFile, a file that only its owner may read"
            ],
        ),
        ("sharding:\n  clusterRole: shardsvr\n", ["x.yaml:2: sharding.clusterRole: each daemon has one role"]),
        (
            "shardwright:\n  mongod:\n    tls: true\n",
            ["x.yaml:2: shardwright.mongod is an option of shardwright-shardd, not of shardwright-router"],
        ),
        ("a: 1\nnet:\n  qqq: 1\n", ["x.yaml:1: unknown key a", "x.yaml:3: unknown key net.qqq"]),
        ("&a [*a]\n", ["x.yaml:1: the file has to consist of keys and values"]),
        ("? [net]\n: 1\n", ["x.yaml:1: a key has to be a word"]),
        ("? {net: 1}\n: 1\n", ["x.yaml:1: a key has to be a word"]),
        ("1: 2\n", ["x.yaml:1: unknown key 1"]),
        ("net: {port: *absent}\n", ["x.yaml:1: found undefined alias 'absent'"]),
        ('systemLog: {path: "\\U00110000"}\n', ["x.yaml: this is not YAML: chr() arg not in range(0x110000)"]),
        (
            "a: \0\n",
            [
                "x.yaml: this is not YAML: unacceptable character #x0000: special characters are not allowed in "
                '"<unicode string>", position 3'
            ],
        ),
    ],
)
def test_mistakes_are_explained(text: str, mistakes: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_text(text, "x.yaml", ROUTER, PROGRAMS[1:])
    assert list(caught.value.mistakes) == mistakes


def test_a_section_may_be_written_in_parts() -> None:
    found = parse_text("net.port: 1\nnet:\n  bindIp: localhost\nnet.tls.mode: requireTLS\n", "x", ROUTER)
    assert {name: values[0].text for name, values in found.items()} == {
        "port": "1",
        "bind-ip": "localhost",
        "tls-mode": "requireTLS",
    }


def test_a_daemon_accepts_its_own_cluster_role() -> None:
    assert parse_text("sharding:\n  clusterRole: shardsvr\n", "x", SHARDD) == {}
    with pytest.raises(ConfigurationError, match="cannot be shardsvr"):
        parse_text("sharding:\n  clusterRole: shardsvr\n", "x", CONFIGD)


def test_a_daemon_without_server_parameters_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"setParameter\.quiet: shardwright-configd has no server parameters"):
        parse_text("setParameter:\n  quiet: true\n", "x", CONFIGD, PROGRAMS[:2])
    found = parse_text("setParameter:\n  tlsX509ExpirationWarningThresholdDays: 5\n", "x", CONFIGD, PROGRAMS[:2])
    assert found["tls-x509-expiration-warning-threshold-days"][0].text == "5"


def test_no_object_is_made_from_a_tag() -> None:
    with pytest.raises(ConfigurationError):
        parse_text("!!python/object/apply:os.system ['true']\n", "x", ROUTER)
    found = parse_text("systemLog:\n  path: !!python/name:os.system x\n", "x", ROUTER)
    assert found["log-file"][0].text == "x"
