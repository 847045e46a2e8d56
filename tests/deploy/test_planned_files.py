"""`shardwright plan`: files that the programs accept, differences, and the written files."""

from pathlib import Path
from shutil import rmtree
from stat import S_IMODE

import pytest
import yaml

from shardwright.daemon.configuration.configuration import configuration_of_file
from shardwright.daemon.configuration.table import PROGRAMS
from shardwright.deploy.authority import alternative_names
from shardwright.deploy.certs import read_certificate
from shardwright.deploy.cli import main
from shardwright.deploy.host_member import read_member, read_router
from tests.deploy.test_description import THREE_HOSTS

A = Path("hosts/a.example.net")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(THREE_HOSTS)


def plan(*words: str) -> int:
    return main(["plan", "cluster.yaml", *words])


def change(before: str, after: str) -> None:
    text = Path("cluster.yaml").read_text()
    assert before in text
    Path("cluster.yaml").write_text(text.replace(before, after, 1))


def test_a_difference_is_shown_and_written_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan() == 1
    assert not Path("hosts").exists()
    assert plan("--write") == 0
    assert plan() == 0
    capsys.readouterr()
    change("0.5", "0.75")
    assert plan() == 1
    shown = capsys.readouterr().out
    assert "-      cacheSizeGB: 0.5\n+      cacheSizeGB: 0.75\n" in shown
    assert f"--- {A}/mongod-shard0.conf\n+++ {A}/mongod-shard0.conf\n" in shown
    assert plan("--write") == 0
    assert plan() == 0


def test_programs_accept_the_files() -> None:
    change(
        "routers:", "options: {router: {setParameter: {cursorTimeoutMillis: 5000}}, mongod: {net: {port: 1}}}\nrouters:"
    )
    assert plan("--write") == 0
    files = [path for path in Path("hosts").glob("*/*.yaml")]
    assert len(files) == 9
    for path in files:
        (program,) = [each for each in PROGRAMS if path.name.startswith(each.name.removeprefix("shardwright-"))]
        values = configuration_of_file(program, path).values
        assert str(values.log_rotate) == "reopen"
        assert values.advertise.host == path.parent.name
        if program.cluster_role is not None:
            mongod = yaml.safe_load((path.parent / f"mongod-{path.stem.partition('-')[2]}.conf").read_text())
            assert mongod["replication"]["replSetName"] == path.stem.partition("-")[2]
            assert values.mongod_tls
            assert mongod["setParameter"]["enableTestCommands"] is True
            assert mongod["setParameter"]["oplogNetworkTimeoutBufferSeconds"] == 1
            assert mongod["net"]["port"] == 1, "options replace what the plan says"
    assert "cursorTimeoutMillis: '5000'" in (A / "router.yaml").read_text()
    assert read_router(A) == "a.example.net:27017"


def test_a_member_is_read_from_the_files() -> None:
    plan("--write")
    for path in A.glob("*d-*.yaml"):
        path.write_text(path.read_text().replace("/etc/shardwright", str(A.absolute())))
    member = read_member(A, "shard0")
    assert (member.is_shard, member.mongod, member.daemon) == (True, "a.example.net:28018", "a.example.net:27018")
    assert member.log_in["username"] == "__system"
    assert member.log_in["password"] == Path("hosts/cluster-key").read_text()
    assert member.log_in["tlsCertificateKeyFile"] == str(A.absolute() / "host.pem")
    assert not read_member(A, "config").is_shard


def test_secrets_are_private_and_stay() -> None:
    plan("--write")
    secrets = [*Path("hosts").glob("*/*.pem"), *Path("hosts").glob("*/key"), Path("hosts/cluster-key")]
    assert {S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    before = {path: path.read_bytes() for path in secrets}
    change("0.5", "0.75")
    plan("--write")
    assert {path: path.read_bytes() for path in secrets} == before


def test_a_certificate_is_replaced_if_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    plan("--write")
    change("routers:", "security: {clientNames: [db.example.net]}\nrouters:")
    capsys.readouterr()
    assert plan() == 1
    assert capsys.readouterr().out.splitlines() == [
        f"hosts/{host}.example.net/host.pem: is not for db.example.net" for host in "ab"
    ]
    plan("--write")
    names = alternative_names(read_certificate(A / "host.pem").extensions)
    assert {"a.example.net", "10.0.0.1", "db.example.net", "localhost"} < set(names)


def test_certificates_of_an_authority_that_was_replaced_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """The new authority has the same name."""
    plan("--write")
    rmtree("hosts/authority")
    plan("--write")
    capsys.readouterr()
    assert plan() == 0
    read_certificate(A / "host.pem").verify_directly_issued_by(read_certificate(Path("hosts/authority/ca.pem")))


def test_a_file_of_another_folder_stays_whatever_its_name() -> None:
    other = Path("hosts/another project/units")
    other.parent.mkdir(parents=True)
    other.write_text("precious")
    plan("--write")
    assert other.read_text() == "precious"


def test_what_is_not_planned_any_more_is_removed_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    plan("--write")
    (A / "notes").write_text("mine")
    change("  shard1:\n    members: [a.example.net]\n", "")
    capsys.readouterr()
    assert plan() == 1
    assert f"--- {A}/shardd-shard1.yaml\n+++ /dev/null\n" in capsys.readouterr().out
    assert plan("--write") == 0
    assert {path.name for path in A.glob("*shard1*")} == set()
    assert (A / "notes").read_text() == "mine"


def test_keys_that_stay_on_hosts_are_not_made() -> None:
    change("routers:", "security: {certificates: requested, clusterAuthMode: x509}\nrouters:")
    plan("--write")
    assert {path.name for path in A.iterdir() if path.suffix in (".pem", "")} == {"ca.pem", "authorities.pem", "units"}
    assert "shardwright certs request a.example.net 10.0.0.1 --key" in Path("hosts/steps.txt").read_text()


def test_mistakes_have_their_own_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    change("hosts:", "host:")
    assert plan() == 2
    assert "cluster.yaml:1: unknown key host; did you mean hosts?" in capsys.readouterr().err
    assert main(["plan", "absent.yaml"]) == 2
    assert main(["plan"]) == 2
