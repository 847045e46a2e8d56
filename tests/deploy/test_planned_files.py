"""`shardwright plan`: files that the programs accept, differences, and the written files."""

import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from stat import S_IMODE

import pytest
import yaml

from shardwright.daemon.configuration.configuration import configuration_of_file
from shardwright.daemon.configuration.table import PROGRAMS, SHARDD
from shardwright.deploy.authority import alternative_names, read_certificate
from shardwright.deploy.certs import TlsFiles
from shardwright.deploy.cli import main
from shardwright.deploy.host_files import read_member, read_router
from tests.certificates import key_of, self_signed
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
        "routers:",
        "options: {router: {setParameter: {cursorTimeoutMillis: 5000}}, mongod: {net: {ipv6: true}}}\nrouters:",
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
            assert mongod["net"]["ipv6"] is True, "options add to what the plan says"
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


@pytest.mark.parametrize("words", [(), ("--write",)])
def test_ports_of_running_sets_do_not_move(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the configurations of the sets and in the catalog."""
    plan("--write")
    before = (A / "shardd-shard1.yaml").read_bytes()
    text = Path("cluster.yaml").read_text()
    start, end = text.index("  shard0:"), text.index("  shard1:")
    for other in (text[:start] + text[end:], text.replace("  shard0:", "  new: {members: [a.example.net]}\n  shard0:")):
        Path("cluster.yaml").write_text(other)
        assert plan(*words) == 2
        assert "shards.shard1: its port would move from 27020 to " in capsys.readouterr().err
        assert (A / "shardd-shard1.yaml").read_bytes() == before
    Path("cluster.yaml").write_text(text[:start] + text[end:].replace("  shard1:\n", "  shard1:\n    port: 27020\n"))
    assert plan("--write") == 0
    assert (A / "shardd-shard1.yaml").read_bytes() == before


def test_keys_that_stay_on_hosts_are_not_made() -> None:
    change("routers:", "security: {certificates: requested, clusterAuthMode: x509}\nrouters:")
    plan("--write")
    assert {path.name for path in A.iterdir() if path.suffix in (".pem", "")} == {"ca.pem", "authorities.pem", "units"}
    assert "shardwright certs request a.example.net 10.0.0.1 --key" in Path("hosts/steps.txt").read_text()


@pytest.mark.parametrize("lost", ["ca.pem", "ca-key.pem", "clients-ca.pem", "clients-ca-key.pem"])
@pytest.mark.parametrize("words", [(), ("--write",)])
def test_an_authority_that_lost_a_file_is_not_replaced(
    lost: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    plan("--write")
    Path("hosts/authority", lost).unlink()
    before = {path: path.read_bytes() for path in Path("hosts").rglob("*.pem")}
    assert plan(*words) == 2
    message = f"shardwright: the authorities in hosts/authority lack {lost}: put a copy back; or, to have everything"
    assert capsys.readouterr().err.startswith(message)
    assert {path: path.read_bytes() for path in Path("hosts").rglob("*.pem")} == before


@pytest.mark.parametrize("words", [(), ("--write",)])
def test_a_lost_key_is_not_replaced(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The copies may be the only ones that are left of the key of a running cluster."""
    plan("--write")
    key = (A / "key").read_bytes()
    Path("hosts/cluster-key").unlink()
    assert plan(*words) == 2
    assert f"`cp {A}/key hosts/cluster-key`" in capsys.readouterr().err
    assert (A / "key").read_bytes() == key
    for copy in Path("hosts").glob("*/key"):
        copy.unlink()
    Path("hosts/cluster-key").symlink_to("/nonexistent/key")
    assert plan(*words) == 2
    assert "hosts/cluster-key is a symbolic link to a missing file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"short"])
def test_a_damaged_key_does_not_reach_the_hosts(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    plan("--write")
    before = (A / "key").read_bytes()
    Path("hosts/cluster-key").write_bytes(content)
    assert plan("--write") == 2
    assert "hosts/cluster-key" in capsys.readouterr().err
    assert (A / "key").read_bytes() == before


def test_a_link_to_a_secret_stays(tmp_path: Path) -> None:
    plan("--write")
    volume = tmp_path / "volume"
    volume.mkdir()
    certificate = A / "host.pem"
    certificate.rename(volume / "a.pem")
    certificate.symlink_to(volume / "a.pem")
    before = certificate.read_bytes()
    change("routers:", "security: {clientNames: [db.example.net]}\nrouters:")
    assert plan("--write") == 0
    assert certificate.is_symlink()
    assert (volume / "a.pem").read_bytes() != before


def test_a_secret_stays_if_its_successor_cannot_be_made() -> None:
    plan("--write")
    change("routers:", "security: {clientNames: [db.example.net]}\nrouters:")
    before = (A / "host.pem").read_bytes()
    Path("hosts/authority/ca-key.pem").write_text("not a key")
    assert plan("--write") == 2
    assert (A / "host.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "fault"),
    [("junk", "has no certificate: "), ("", "has no certificate: "), (None, "has no key that fits its certificate")],
)
def test_a_damaged_certificate_is_replaced(text: str | None, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan("--write")
    whole = (A / "host.pem").read_text()
    (A / "host.pem").write_text(whole.partition("-----BEGIN PRIVATE")[0] if text is None else text)
    capsys.readouterr()
    assert plan() == 1
    assert capsys.readouterr().out.startswith(f"hosts/a.example.net/host.pem: {fault}")
    assert plan("--write") == 0
    assert plan() == 0


def test_the_end_of_an_authority_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    """No new certificate could last longer, so certificates are not replaced again and again."""
    plan("--write")
    authority = Path("hosts/authority")
    issued = self_signed(authority / "ca.pem", days=(-1, 20))
    (authority / "ca-key.pem").write_bytes(key_of(issued))
    plan("--write")
    capsys.readouterr()
    assert plan() == 0
    assert capsys.readouterr().err == (
        f"shardwright: the authority in hosts/authority/ca.pem expires on "
        f"{issued.certificate.not_valid_after_utc:%Y-%m-%d}, and every certificate with it: remove hosts/authority and "
        "plan again, then copy the files to all hosts and restart all processes\n"
    )


def test_what_a_killed_writer_left_is_removed() -> None:
    plan("--write")
    for name in ("key.0a1b2c3d.new", "host.pem.0a1b2c3d.new", "mine.new"):
        (A / name).write_text("secret")
    assert plan("--write") == 0
    assert [path.name for path in A.glob("*.new")] == ["mine.new"]


def test_two_writers_at_once_agree() -> None:
    """The keys of the authorities, the cluster's key and its copies fit together after two writers at once."""
    words = [sys.executable, "-m", "shardwright.deploy.cli", "plan", "cluster.yaml", "--write"]
    both = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    assert plan() == 0
    assert list(Path("hosts").rglob("*.new")) == []
    assert {path.read_text() for path in Path("hosts").glob("*/key")} == {Path("hosts/cluster-key").read_text()}
    TlsFiles(Path("hosts/authority")).authorities()


def test_a_directory_in_place_of_a_file_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    (A / "units").mkdir(parents=True)
    assert plan() == 2
    assert plan("--write") == 2
    assert main(["plan", "hosts"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"shardwright: cannot use {A}/units: Is a directory",
        f"shardwright: cannot use {A}/units: Is a directory",
        "shardwright: cannot use hosts: Is a directory",
    ]


def test_a_file_in_another_encoding_is_replaced() -> None:
    plan("--write")
    (A / "units").write_bytes(b"\xff")
    assert plan() == 1
    assert plan("--write") == 0
    assert plan() == 0


def test_a_file_that_cannot_be_written_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts").write_text("mine")
    assert plan("--write") == 2
    assert "hosts" in capsys.readouterr().err
    assert Path("hosts").read_text() == "mine"


def test_a_mongod_gets_ipv6_if_a_host_has_it() -> None:
    change("10.0.0.3", "fd00::3")
    plan("--write")
    found = {path: yaml.safe_load(path.read_text())["net"] for path in Path("hosts").glob("*/mongod-*.conf")}
    assert {net["ipv6"] for net in found.values()} == {True}
    assert found[Path("hosts/c.example.net/mongod-shard0.conf")]["bindIp"] == "127.0.0.1,fd00::3"
    values = configuration_of_file(SHARDD, Path("hosts/c.example.net/shardd-shard0.yaml")).values
    assert values.bind_ip == ("127.0.0.1", "fd00::3")
    assert plan() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{net: 5}", "options.mongod.net has to be a section with keys"),
        ("{net: [5]}", "options.mongod.net has to be a section with keys"),
        ("{net.bindIp: {a: 1}}", "options.mongod.net.bindIp has to be a single value"),
        ("{storage.dbPath.x: 1}", "options.mongod.storage.dbPath has to be a single value"),
    ],
)
def test_options_do_not_replace_sections(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    change("routers:", f"options: {{mongod: {options}}}\nrouters:")
    assert plan() == 2
    assert capsys.readouterr().err == f"shardwright: {message}\n"


def test_mistakes_have_their_own_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    change("hosts:", "host:")
    assert plan() == 2
    assert "cluster.yaml:1: unknown key host; did you mean hosts?" in capsys.readouterr().err
    assert main(["plan", "absent.yaml"]) == 2
    Path("cluster.yaml").write_bytes(b"\xff")
    assert plan() == 2
    assert capsys.readouterr().err.endswith("shardwright: cluster.yaml is not UTF-8\n")
    assert main(["plan"]) == 2
