"""A revoked certificate of a member: every process of the cluster refuses it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from pymongo.errors import ConnectionFailure

from shardwright.deploy.authority import Authority
from shardwright.deploy.certs import TlsFiles
from tests.local_cluster import RunningCluster, running_cluster

PROCESSES: Final = ("router.0", "shard0.0.shardd", "config.0.configd", "shard0.0.mongod", "config.0.mongod")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """A cluster whose processes recognise each other by certificates."""
    options = ("--auth", "--tls", "--cluster-auth-mode", "x509", "--shards", "1")
    with running_cluster(tmp_path / "cluster", *options) as running:
        yield running


def test_a_revoked_certificate_of_a_member_opens_no_door(cluster: RunningCluster, tmp_path: Path) -> None:
    files = TlsFiles(cluster.directory / "tls")
    lost = tmp_path / "lost.pem"
    lost.write_bytes(files.member_file.read_bytes())
    for process in PROCESSES:
        assert user_of(cluster, process, lost) == "__system"
    files.member_file.unlink()  # the members get another one
    revoke(files, lost)
    cluster.run("down")
    cluster.run("up", "--detach")
    for process in PROCESSES:
        with pytest.raises(ConnectionFailure):
            user_of(cluster, process, lost)
        assert user_of(cluster, process, files.member_file) == "__system"
    with cluster.client() as client:
        client.shop.goods.insert_one({"_id": 1})
        assert client.shop.goods.find_one() == {"_id": 1}


def user_of(cluster: RunningCluster, process: str, certificate: Path) -> str:
    """Return the user that a certificate logs in at a process."""
    options = {**cluster.tls, "tlsCertificateKeyFile": str(certificate), "authSource": "$external", "username": None}
    with cluster.direct(process, **options, authMechanism="MONGODB-X509", serverSelectionTimeoutMS=1500) as client:
        (user,) = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        return str(user["user"])


def revoke(files: TlsFiles, certificate: Path) -> None:
    """Revoke a certificate of the servers' authority, as the operator of the cluster would."""
    when = datetime.now(UTC) - timedelta(days=1)
    serial = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
    lists = b""
    for name, revoked in (("ca", [entry]), ("clients-ca", [])):
        authority = Authority.load(files.directory / f"{name}-key.pem", files.directory / f"{name}.pem")
        builder = x509.CertificateRevocationListBuilder(
            authority.certificate.subject,
            when,
            when + timedelta(days=30),
            revoked_certificates=revoked,
        )
        lists += builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    files.crl_file.write_bytes(lists)
