"""Options from the command line, the environment and a file, and what a process shows of them."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardwright.daemon.configuration.configuration import (
    Configuration,
    as_file,
    configuration,
    flat_options,
    nested_options,
)
from shardwright.daemon.configuration.option import Option
from shardwright.daemon.configuration.process import Rereading, process_configuration
from shardwright.daemon.configuration.table import PROGRAMS, ROUTER, SHARDD

CONFIGDB = ("--configdb", "cfg/a:1")


def with_file(directory: Path, text: str, *words: str, environment: dict[str, str] | None = None) -> Configuration:
    """The configuration of a router with a file."""
    path = directory / "router.yaml"
    path.write_text(text)
    return configuration(ROUTER, [*CONFIGDB, "--config", str(path), *words], environment or {})


def test_the_command_line_precedes_the_environment_and_that_the_file(tmp_path: Path) -> None:
    text = "net: {port: 1}\nsystemLog: {verbosity: 2, path: in_file}\noperationProfiling: {slowOpThresholdMs: 1}\n"
    environment = {"SHARDWRIGHT_PORT": "2", "SHARDWRIGHT_SLOW_MS": "2", "SHARDWRIGHT_KEY_FILE": ""}
    values = with_file(tmp_path, text, "--port", "3", environment=environment).values
    assert (values.port, values.slow_ms, values.log_level) == (3, 2, "debug")
    assert (values.log_file, values.key_file) == (Path("in_file"), None)


def test_parameters_of_all_sources_are_combined(tmp_path: Path) -> None:
    text = "setParameter: {a: 1, b: 1, c: 1}\n"
    environment = {"SHARDWRIGHT_SET_PARAMETER": "b=2,c=2"}
    path = tmp_path / "router.yaml"
    path.write_text(text)
    words = [*CONFIGDB, "--config", str(path), "--set-parameter", "c=3"]

    found = configuration(ROUTER, words, environment)
    assert found.values.parameters == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize("flag", ["--noauth=false", "--noauth"])
def test_the_command_line_can_turn_a_switch_of_the_file_off(tmp_path: Path, flag: str) -> None:
    assert with_file(tmp_path, "shardwright: {noauth: true}", flag).values.noauth is (flag == "--noauth")


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("net: {port: 5}")
    assert configuration(ROUTER, CONFIGDB, {"SHARDWRIGHT_CONFIG": str(path)}).values.port == 5


@pytest.mark.parametrize(
    ("words", "text", "complaint"),
    [
        ((), "net:\n  port: 65536", ":2: net.port: '65536' is not a port from 0 to 65535"),
        (("--slow-mss", "1"), "", "unrecognized arguments: --slow-mss 1 (did you mean --slow-ms?)"),
        (("--port", "x"), "", "argument --port: 'x' is not a port"),
        ((), "\n\nnet: 1", ":3: net has to be a section"),
    ],
)
def test_mistakes_end_the_process_with_status_2(
    tmp_path: Path, words: tuple[str, ...], text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        with_file(tmp_path, text, *words)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        configuration(ROUTER, CONFIGDB, {"SHARDWRIGHT_PORT": "tcp://10.0.0.1:27017"})
    assert "SHARDWRIGHT_PORT: 'tcp://10.0.0.1:27017' is not a port" in capsys.readouterr().err
    found = configuration(ROUTER, CONFIGDB, {"SHARDWRIGHT_SLOW_MSS": "1", "SHARDWRIGHT_PORTS": "1"})
    assert found.warnings == ("SHARDWRIGHT_SLOW_MSS is ignored; did you mean SHARDWRIGHT_SLOW_MS?",)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none")
    for words, environment in (([*CONFIGDB, "--config", missing], {}), (CONFIGDB, {"SHARDWRIGHT_CONFIG": missing})):
        with pytest.raises(SystemExit) as caught:
            configuration(ROUTER, words, environment)
        assert caught.value.code == 2
        assert f"shardwright-router: {missing}: No such file or directory" in capsys.readouterr().err
    (tmp_path / "none").write_bytes(b"\xff")
    with pytest.raises(SystemExit):
        configuration(ROUTER, [*CONFIGDB, "--config", missing], {})
    assert f"{missing}: this is not UTF-8" in capsys.readouterr().err


def test_an_empty_variable_names_no_file() -> None:
    assert configuration(ROUTER, CONFIGDB, {"SHARDWRIGHT_CONFIG": ""}).file is None


def test_a_required_option_may_stand_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("sharding: {configDB: 'cfg/a'}")
    assert str(configuration(ROUTER, ["--config", str(path)], {}).values.configdb) == "cfg/a:27019"
    with pytest.raises(SystemExit):
        configuration(ROUTER, [], {})
    assert "required: --configdb" in capsys.readouterr().err


def test_all_mistakes_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("net: {port: much, prot: 1}\nsecurity: {keyFile: }\nshardwright: {workers: 0}\n")
    with pytest.raises(SystemExit) as ended:
        configuration(ROUTER, ["--config", str(path)], {"SHARDWRIGHT_SLOW_MS": "x"})
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"shardwright-router: {path}:1: unknown key net.prot; did you mean net.port?",
        f"shardwright-router: {path}:2: security.keyFile has no value",
        f"shardwright-router: {path}:1: net.port: 'much' is not a port from 0 to 65535",
        "shardwright-router: SHARDWRIGHT_SLOW_MS: 'x' is not a number of milliseconds",
        f"shardwright-router: {path}:3: shardwright.workers: '0' is not a number from 1 to 64",
        "shardwright-router: the following arguments are required: --configdb",
    ]


def test_a_directory_in_place_of_a_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        configuration(ROUTER, [*CONFIGDB, "--config", str(tmp_path)], {})
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"shardwright-router: {tmp_path}: Is a directory\n"


def test_options_are_shown_in_sections_and_by_name(tmp_path: Path) -> None:
    found = with_file(tmp_path, "net: {port: 5}\nsetParameter: {quiet: true}", "--noauth", "--config-seconds", "2")
    assert nested_options(found) == {
        "config": str(tmp_path / "router.yaml"),
        "net": {"port": 5},
        "setParameter": {"quiet": "true"},
        "sharding": {"configDB": "cfg/a:1"},
        "shardwright": {"limits": {"configSeconds": 2.0}, "noauth": True},
    }
    assert flat_options(found)["config-seconds"] == 2.0


_EXAMPLES: dict[str, st.SearchStrategy[str]] = {
    "advertise": st.just("db.example.net:1"),
    "configdb": st.just("cfg/a:1,b:2"),
    "mongod-address": st.just("a:1"),
    "mongod-socket": st.just("/run/mongod.sock"),
    "audit-filter": st.just('{"atype": "authCheck"}'),
    "tls-disabled-protocols": st.sampled_from(["none", "TLS1_2"]),
    "tls-x509-cluster-auth-dn-override": st.just("O=shop"),
    "bind-ip": st.sampled_from(["::", "0.0.0.0,::1", "localhost"]),
    "metrics-bind-ip": st.just("127.0.0.2"),
    "set-parameter": st.sampled_from(["a=1", "b=true"]),
    "otlp-endpoint": st.just("http://a:4318"),
    "trace-sample-ratio": st.sampled_from(["0.0", "0.01", "1.0"]),
}


def texts(option: Option) -> st.SearchStrategy[str]:
    """Texts of valid values."""
    if option.name in _EXAMPLES:
        return _EXAMPLES[option.name]
    schema: dict[str, Any] = dict(option.type.schema)
    if "enum" in schema:
        return st.sampled_from([str(each) for each in schema["enum"]])
    kinds: dict[str, st.SearchStrategy[str]] = {
        "boolean": st.sampled_from(["true", "false"]),
        "integer": st.integers(1, min(schema.get("maximum", 1000), 1000)).map(str),
        "number": st.floats(0.001, 1000).map(repr),
        "string": st.sampled_from(["/some/path", "no", "12", "a: b # c", "ü"]),
    }
    return kinds[schema["type"]]


@given(st.data())
def test_a_printed_configuration_has_the_same_effect(data: st.DataObject) -> None:
    program = data.draw(st.sampled_from(PROGRAMS))
    chosen = data.draw(st.sets(st.sampled_from([option.name for option in program.options])))
    chosen |= {option.name for option in program.options if option.is_required}
    words = [f"--{name}={data.draw(texts(program.option(name)))}" for name in sorted(chosen)]

    first = configuration(program, words, {})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(as_file(first))
        file.flush()
        second = configuration(program, ["--config", file.name], {})
    compared = [option.attribute for option in program.options if option.name != "audit-filter"]
    assert {name: getattr(first.values, name) for name in compared} == {
        name: getattr(second.values, name) for name in compared
    }


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_names_of_options_are_unique(program: Any) -> None:  # noqa: ANN401 - a parameter of the test
    for names in ("name", "path", "attribute", "variable"):
        found = [getattr(option, names) for option in program.options]
        assert len(found) == len(set(found))


def test_no_option_holds_a_secret() -> None:
    for option in (option for program in PROGRAMS for option in program.options):
        assert "password" not in option.name or option.name.endswith("-file")


def test_checking_looks_at_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    words = [*CONFIGDB, "--check-config", "--key-file", str(key)]
    with pytest.raises(SystemExit) as caught:
        process_configuration(ROUTER, words)
    assert caught.value.code == 2
    assert f"{key}: No such file or directory" in capsys.readouterr().err
    key.write_text("c2VjcmV0c2VjcmV0")
    key.chmod(0o600)
    with pytest.raises(SystemExit) as caught:
        process_configuration(ROUTER, words)
    assert caught.value.code == 0
    assert "the configuration is valid" in capsys.readouterr().err


def test_printing_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        process_configuration(ROUTER, [*CONFIGDB, "--print-config"])
    assert caught.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["net"] == {
        "bindIp": "127.0.0.1",
        "port": 27017,
        "tls": {
            "mode": "disabled",
            "disabledProtocols": "none",
            "allowConnectionsWithoutCertificates": False,
            "allowInvalidCertificates": False,
            "allowInvalidHostnames": False,
        },
    }


def test_rereading_tells_what_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    read_again = Rereading(with_file(tmp_path, "net: {port: 1}\nsystemLog: {verbosity: debug}\n"))
    assert read_again().changed == frozenset()
    path.write_text("net: {port: 2}\noperationProfiling: {slowOpThresholdMs: 5}\n")
    reread = read_again()
    assert reread.changed == {"log_level", "slow_ms"}
    assert reread.waiting == ("port",)
    assert (reread.values.slow_ms, reread.values.log_level) == (5, "info")
    again = read_again()
    assert (again.changed, again.waiting) == (frozenset(), ("port",)), "it still waits for a restart"
    path.write_text("net: {prt: 2}\n")
    with pytest.raises(ValueError, match=r"did you mean net\.port"):
        read_again()
    path.write_text("net: {port: 1}\noperationProfiling: {slowOpThresholdMs: 5}\n")
    again = read_again()
    assert (again.changed, again.waiting) == (frozenset(), ()), "the port is the one in use"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        configuration(SHARDD, ["--version"], {})
    assert capsys.readouterr().out.startswith("shardwright-shardd ")
