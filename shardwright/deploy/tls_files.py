"""TLS of a local cluster: its authorities, and the certificates that they have signed.

::

    DIR/tls/ca.pem                the certificate of the servers' authority, which clients trust
    DIR/tls/ca-key.pem            its private key
    DIR/tls/clients-ca.pem        the certificate of the clients' authority
    DIR/tls/clients-ca-key.pem    its private key
    DIR/tls/authorities.pem       both certificates, with which daemons verify each other and clients
    DIR/tls/server.pem            certificate and key of all processes, which share a machine
    DIR/tls/member.pem            certificate and key of processes and launcher for connections to each other
    DIR/tls/client.pem            certificate and key for clients
    DIR/tls/crl.pem               optional, made by the operator: the authorities' lists of revoked certificates

mongods trust the servers' authority alone: their test commands need no authentication, so no client may reach them. In
an older directory with only one authority, the servers' authority has signed everything.

Only the owner can read files with keys. Missing files are created at the next start, so that a file can be renewed by
removing it. Both authorities are replaced together, with everything that they have signed.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardwright.deploy.access import write_once
from shardwright.deploy.authority import Authority
from shardwright.deploy.errors import DeployError

SERVERS: Final = "servers"
"""The organizational unit in the certificates of processes."""
CLIENTS: Final = "clients"
"""The organizational unit of clients' certificates, because the servers' unit may mark a member."""


@dataclass(frozen=True)
class TlsFiles:
    """The files of a cluster with TLS."""

    directory: Path

    @property
    def ca_file(self) -> Path:
        """The certificate of the servers' authority."""
        return self.directory / "ca.pem"

    @property
    def clients_ca_file(self) -> Path:
        """The certificate of the clients' authority."""
        return self.directory / "clients-ca.pem"

    @property
    def authorities_file(self) -> Path:
        """The certificates of both authorities."""
        return self.directory / "authorities.pem"

    @property
    def server_file(self) -> Path:
        """Certificate and key of the processes."""
        return self.directory / "server.pem"

    @property
    def member_file(self) -> Path:
        """Certificate and key for connections of the processes to each other."""
        return self.directory / "member.pem"

    @property
    def client_file(self) -> Path:
        """Certificate and key for clients."""
        return self.directory / "client.pem"

    @property
    def crl_file(self) -> Path:
        """The list of revoked certificates, which need not exist; processes read it when they start."""
        return self.directory / "crl.pem"

    def create(self) -> None:
        """Create the missing files."""
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            authority, authority_of_clients = self.authorities()
            hosts = ("localhost", "127.0.0.1", "::1", socket.gethostname())
            if not self.server_file.exists():
                write_once(self.server_file, authority.issue(SERVERS, "localhost", hosts))
            if not self.member_file.exists():
                write_once(self.member_file, authority.issue(SERVERS, "member", ()))
            if not self.client_file.exists():
                write_once(self.client_file, authority_of_clients.issue(CLIENTS, "client", ()))
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DeployError(f"cannot create the certificates in {self.directory}: {reason}") from error

    def connection(self) -> Mapping[str, Any]:
        """Return the launcher's options for connections to any process."""
        return {"tls": True, "tlsCAFile": str(self.ca_file), "tlsCertificateKeyFile": str(self.member_file)}

    def client_connection(self) -> Mapping[str, Any]:
        """Return the clients' options for connections to the routers."""
        return {**self.connection(), "tlsCertificateKeyFile": str(self.client_file)}

    def log_in(self) -> Mapping[str, Any]:
        """Return the launcher's connection options, with a log-in as a member of the cluster."""
        return {**self.connection(), "authMechanism": "MONGODB-X509", "authSource": "$external"}

    def daemon_words(self) -> list[str]:
        """Return the options of a daemon."""
        files = ("--tls-certificate-key-file", str(self.server_file), "--tls-cluster-file", str(self.member_file))
        accepted = ("--tls-cluster-ca-file", str(self.authorities_file)) if self.authorities_file.exists() else ()
        revoked = ("--tls-crl-file", str(self.crl_file)) if self.crl_file.exists() else ()
        return ["--tls-mode", "require", *files, "--tls-ca-file", str(self.ca_file), *accepted, *revoked]

    def mongod_words(self) -> list[str]:
        """Return the options of a mongod."""
        files = ("--tlsCertificateKeyFile", str(self.server_file), "--tlsClusterFile", str(self.member_file))
        revoked = ("--tlsCRLFile", str(self.crl_file)) if self.crl_file.exists() else ()
        return ["--tlsMode", "requireTLS", *files, "--tlsCAFile", str(self.ca_file), *revoked]

    def describe(self) -> dict[str, str]:
        """Return the entry for ``--json``."""
        return {
            "caFile": str(self.ca_file),
            "clientCertificateFile": str(self.client_file),
            "memberCertificateFile": str(self.member_file),
        }

    def authorities(self) -> tuple[Authority, Authority]:
        """Return the servers' and the clients' authority, which may be the same.

        Both are created if the servers' is missing.
        """
        files = self.directory / "ca-key.pem", self.ca_file
        clients_files = self.directory / "clients-ca-key.pem", self.clients_ca_file
        if not all(file.exists() for file in files):
            signed = (self.server_file, self.member_file, self.client_file)
            for made_by_old_ones in (*files, *clients_files, self.authorities_file, *signed):
                made_by_old_ones.unlink(missing_ok=True)
            servers, clients = Authority.new("authority"), Authority.new("authority for clients")
            write_once(self.authorities_file, servers.text + clients.text)
            clients.save(*clients_files)
            servers.save(*files)
        servers = Authority.load(*files)
        return servers, Authority.load(*clients_files) if self.clients_ca_file.exists() else servers
