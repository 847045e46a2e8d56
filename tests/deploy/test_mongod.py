import stat
from pathlib import Path

import pytest

from shardwright.deploy.errors import DeployError
from shardwright.deploy.mongod import ENVIRONMENT_VARIABLE, find_mongod, mongod_arguments, untried_release
from shardwright.deploy.topology import ProcessPlan, Role


def fake_mongod(path: Path, version: str) -> Path:
    path.write_text(f"#!/bin/sh\necho 'db version v{version}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No mongod is named and none is on PATH."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()


def test_option_wins_over_environment_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_mongod(tmp_path / "path" / "mongod", "6.0.1")
    assert find_mongod() == str(on_path)
    in_environment = fake_mongod(tmp_path / "environment", "7.0.1")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(in_environment))
    assert find_mongod() == str(in_environment)
    option = fake_mongod(tmp_path / "option", "8.0.1")
    assert find_mongod(str(option)) == str(option)


def test_embedded_mongod_is_the_last_resort() -> None:
    assert find_mongod().endswith("fiftyone/db/bin/mongod")


def test_missing_mongod_is_refused() -> None:
    with pytest.raises(DeployError, match="/nowhere/mongod is not an executable mongod"):
        find_mongod("/nowhere/mongod")


def test_old_mongod_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"is mongod 5; 6\.0 or newer is needed"):
        find_mongod(str(fake_mongod(tmp_path / "old", "5.0.14")))


def test_a_release_that_was_not_tried_is_named(tmp_path: Path) -> None:
    tried, newer = fake_mongod(tmp_path / "tried", "6.0.27"), fake_mongod(tmp_path / "newer", "8.0.4")
    assert untried_release(find_mongod(str(tried))) is None
    warning = untried_release(find_mongod(str(newer)))
    assert warning is not None
    assert warning.startswith(f"{newer} is mongod 8.0, and Shardwright was tried with 6.0 only: read docs/upgrade.md")


def test_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho 'cannot open shared object' >&2\nexit 127\n")
    other.chmod(0o755)
    with pytest.raises(DeployError, match="is not a working mongod: cannot open shared object"):
        find_mongod(str(other))


def test_arguments_name_set_socket_and_test_commands() -> None:
    plan = ProcessPlan("shard0.0.mongod", Role.MONGOD, 20_001, "shard0")
    sockets = Path("/run/s")
    arguments = mongod_arguments("/bin/mongod", plan, dbpath=Path("/d"), log=Path("/l"), sockets=sockets, cache_gb=0.5)
    text = " ".join(arguments)
    assert text.startswith("/bin/mongod --replSet shard0 --bind_ip 127.0.0.1 --port 20001 --unixSocketPrefix /run/s ")
    assert "--setParameter enableTestCommands=1" in text
    assert "--setParameter oplogNetworkTimeoutBufferSeconds=1" in text
    assert "diagnosticDataCollectionEnabled" not in text
    assert sockets / plan.socket_name == Path("/run/s/mongodb-20001.sock")


def test_a_mongod_without_a_port_is_known_by_a_path_that_does_not_change_when_the_directory_moves() -> None:
    plan = ProcessPlan("shard0.0.mongod", Role.MONGOD, None, "shard0")
    sockets = Path("/run/s")
    arguments = mongod_arguments("/bin/mongod", plan, dbpath=Path("/d"), log=Path("/l"), sockets=sockets, cache_gb=0.5)
    text = " ".join(arguments)
    assert text.startswith("/bin/mongod --replSet shard0 --bind_ip ./shard0.0.mongod.sock --nounixsocket --dbpath")
    assert "--port" not in text
    assert plan.address == "./shard0.0.mongod.sock"
