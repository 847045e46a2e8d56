"""Certificates: the TLS files of a local cluster, and ``shardwright certs`` for a cluster on several machines.

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

Only the owner can read files with keys. A missing certificate of processes or clients is created at the next start, so
that it can be renewed by removing it. Both authorities are replaced together, with everything that they have signed,
after the directory was removed. An authority with a missing file is never replaced: the file may exist elsewhere.

The authority of ``certs`` is a directory with the same files. A host or user can keep its key on its own machine and
send only a certificate request.
"""

import argparse
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from shardwright.deploy.authority import (
    Authority,
    CertificateRequest,
    alternative_names,
    parse_certified_host,
    parse_common_name,
    read_certificate,
)
from shardwright.deploy.durable_files import locked_directory, write_once, write_private
from shardwright.deploy.errors import DeployError, os_reason

SERVERS: Final = "servers"
"""The organizational unit in the certificates of processes."""
CLIENTS: Final = "clients"
"""The organizational unit of clients' certificates, because the servers' unit may mark a member."""

DEFAULT_AUTHORITY: Final = Path("authority")
RENEWAL: Final = timedelta(days=30)
"""Remaining validity below which a certificate is replaced."""


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
        """Create the missing files; `deploy.layout.Layout.create` calls this at each ``up`` and ``add-shard``.

        Raises:
            DeployError: a file cannot be written, or an authority cannot be used.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            if not self.has_authority():
                for of_another_authority in (self.server_file, self.member_file, self.client_file):
                    of_another_authority.unlink(missing_ok=True)
            authority, authority_of_clients = self.authorities()
            if not self.server_file.exists():
                write_once(self.server_file, authority.issue(SERVERS, "localhost", _names_of_machine()))
            if not self.member_file.exists():
                write_once(self.member_file, authority.issue(SERVERS, "member", ()))
            if not self.client_file.exists():
                write_once(self.client_file, authority_of_clients.issue(CLIENTS, "client", ()))
        except OSError as error:
            raise DeployError(f"cannot create the certificates in {self.directory}: {os_reason(error)}") from error

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

    @property
    def _servers_files(self) -> tuple[Path, Path]:
        return self.directory / "ca-key.pem", self.ca_file

    @property
    def _clients_files(self) -> tuple[Path, Path]:
        return self.directory / "clients-ca-key.pem", self.clients_ca_file

    def has_authority(self) -> bool:
        """Whether there are authorities; False if there is no file of any, nor a symbolic link to one.

        Raises:
            DeployError: some files are missing.
        """
        required: tuple[Path, ...] = (*self._servers_files, *self._clients_files)
        if not any(map(os.path.lexists, (*required, self.authorities_file))):
            return False
        present = [each for each in required if each.exists()]
        if present == list(self._servers_files) and not self.authorities_file.exists():
            required = self._servers_files  # an older directory
        missing = [each.name for each in required if each not in present]
        if missing:
            raise DeployError(
                f"the authorities in {self.directory} lack {' and '.join(missing)}: put a copy back; or, to have "
                f"everything signed by new authorities, remove {self.directory}"
            )
        return True

    def authorities(self) -> tuple[Authority, Authority]:
        """Return the servers' and the clients' authority, which may be the same, and create them if there are none.

        Raises:
            OSError: the directory cannot be used.
            DeployError: a file is missing or cannot be written, or an authority cannot sign certificates.
        """
        with locked_directory(self.directory):
            if not self.has_authority():
                self._create_authorities()
        servers = Authority.load(*self._servers_files)
        if not self.clients_ca_file.exists():
            return servers, servers
        clients = Authority.load(*self._clients_files)
        write_once(self.authorities_file, servers.text + clients.text)
        return servers, clients

    def _create_authorities(self) -> None:
        servers, clients = Authority.new("authority"), Authority.new("authority for clients")
        try:
            clients.save(*self._clients_files)
            servers.save(*self._servers_files)
            write_private(self.authorities_file, servers.text + clients.text)
        except BaseException:
            for incomplete in (*self._servers_files, *self._clients_files, self.authorities_file):
                incomplete.unlink(missing_ok=True)
            raise


def _names_of_machine() -> tuple[str, ...]:
    """Return the names and addresses of this machine; the kernel accepts host names that DNS does not."""
    names = ("localhost", "127.0.0.1", "::1")
    try:
        return (*names, parse_certified_host(socket.gethostname()))
    except ValueError:
        return names


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, description: str, *, needs_authority: bool) -> argparse.ArgumentParser:
        subparser = actions.add_parser(name, help=description, description=description)
        if needs_authority:
            subparser.add_argument(
                "--authority",
                type=Path,
                default=DEFAULT_AUTHORITY,
                metavar="DIR",
                help="directory of the authority, which is created if it does not exist (default: %(default)s)",
            )
        return subparser

    action("authority", "Create the authorities for hosts and for users.", needs_authority=True)
    host = action("host", "Issue a certificate for all processes of a host.", needs_authority=True)
    _add_names(host)
    host.add_argument("--out", type=Path, metavar="FILE", help="certificate and key (default: NAME.pem)")
    user = action("user", "Issue a certificate for a user.", needs_authority=True)
    user.add_argument("subject", metavar="NAME", help="common name of the user")
    user.add_argument("--out", type=Path, metavar="FILE", help="certificate and key (default: NAME.pem)")
    request = action("request", "On a host: make a key, which stays there, and a request.", needs_authority=False)
    _add_names(request)
    request.add_argument("--user", action="store_true", help="the request of a user, not of a host")
    request.add_argument("--key", type=Path, metavar="FILE", help="the private key (default: NAME.key)")
    request.add_argument("--out", type=Path, metavar="FILE", help="the request (default: NAME.csr)")
    sign = action("sign", "Sign a request.", needs_authority=True)
    sign.add_argument("request", type=Path, help="the request")
    sign.add_argument("--user", action="store_true", help="sign it for a user, not for a host")
    sign.add_argument(
        "--out", type=Path, metavar="FILE", help="the certificate (default: REQUEST with the suffix .crt)"
    )
    show = action("show", "Show whom a certificate is for, and until when.", needs_authority=False)
    show.add_argument("file", type=Path, help="a certificate, or a certificate and its key")


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="NAME", help="name of the host, as others connect to it")
    parser.add_argument("names", nargs="*", metavar="ALIAS", help="further names and addresses of the host")


def run_command(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    try:
        for line in _ACTIONS[options.action](options):
            print(line)
    except OSError as error:
        raise DeployError(f"cannot use {os_reason(error)}") from error
    return 0


def authorities(directory: Path) -> tuple[Authority, Authority]:
    """Return the authorities for hosts and for users, and create them if they do not exist."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return TlsFiles(directory).authorities()
    except OSError as error:
        raise DeployError(f"cannot use the authority in {directory}: {error.strerror}") from error


def host_names(name: str, aliases: list[str]) -> tuple[str, ...]:
    """Return the hosts of a certificate, including loopback, over which the daemons of a host reach each other."""
    return tuple(dict.fromkeys((name, *aliases, "localhost", "127.0.0.1", "::1")))


def _authority(options: argparse.Namespace) -> list[str]:
    authorities(options.authority)
    files = TlsFiles(options.authority)
    return [
        f"{files.ca_file}: the hosts' authority, for mongods, daemons and clients",
        f"{files.authorities_file}: with the users' authority, for daemons (net.tls.clusterCAFile)",
        f"{files.directory}/*-key.pem: the private keys, which no host needs",
    ]


def _host(options: argparse.Namespace) -> list[str]:
    hosts = _checked_hosts(options)
    path: Path = options.out or Path(f"{options.subject}.pem")
    _write_new(path, lambda: authorities(options.authority)[0].issue(SERVERS, options.subject, hosts))
    return _described(path)


def _user(options: argparse.Namespace) -> list[str]:
    _check_user(options.subject)
    path: Path = options.out or _default_file(options.subject, ".pem", "--out")
    _write_new(path, lambda: authorities(options.authority)[1].issue(CLIENTS, options.subject, ()))
    return _described(path)


def _request(options: argparse.Namespace) -> list[str]:
    if options.user and options.names:
        raise DeployError("a user's certificate has no host names: omit them, or omit --user")
    if options.user:
        _check_user(options.subject)
    hosts = () if options.user else _checked_hosts(options)
    key_file: Path = options.key or _default_file(options.subject, ".key", "--key")
    request_file: Path = options.out or _default_file(options.subject, ".csr", "--out")
    for path in (key_file, request_file):
        _refuse_existing(path)
    key, request = CertificateRequest.new(options.subject, hosts)
    write_once(key_file, key)
    write_once(request_file, request)
    return [f"{key_file}: the private key, which stays here", f"{request_file}: for `shardwright certs sign`"]


def _sign(options: argparse.Namespace) -> list[str]:
    try:
        request = CertificateRequest.parse(options.request.read_bytes())
    except ValueError as error:
        raise DeployError(f"{options.request} is not a request of `shardwright certs request`: {error}") from error
    if bool(request.hosts) == options.user:
        raise DeployError(
            f"{options.request} is the request of a {'host: omit' if options.user else 'user: add'} --user"
        )
    for_hosts, for_users = authorities(options.authority)
    authority, unit = (for_users, CLIENTS) if options.user else (for_hosts, SERVERS)
    path: Path = options.out or options.request.with_suffix(".crt")
    _write_new(path, lambda: authority.sign(request, unit))
    return _described(path)


def _show(options: argparse.Namespace) -> list[str]:
    return _described(options.file)


def _described(path: Path) -> list[str]:
    certificate = read_certificate(path)
    names = ", ".join(alternative_names(certificate.extensions))
    subject = _printable(certificate.subject.rfc4514_string())
    user = json.dumps(subject, ensure_ascii=False)
    return [
        f"{path}: {subject}, until {certificate.not_valid_after_utc:%Y-%m-%d}",
        f"  for {_printable(names)}"
        if names
        else f'  db.getSiblingDB("$external").createUser({{ user: {user}, roles: […] }})',
    ]


def _checked_hosts(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hosts of a certificate; its common name is the first."""
    try:
        if "*" in parse_common_name(options.subject):
            raise ValueError(f"{options.subject!r} is not the name of one host: give it as an ALIAS")
        name, *aliases = map(parse_certified_host, (options.subject, *options.names))
    except ValueError as error:
        raise DeployError(str(error)) from error
    return host_names(name, aliases)


def _check_user(name: str) -> None:
    try:
        parse_common_name(name)
    except ValueError as error:
        raise DeployError(str(error)) from error


def _default_file(name: str, suffix: str, option: str) -> Path:
    if "/" in name:
        raise DeployError(f"{name} cannot be the name of a file: give {option}")
    return Path(f"{name}{suffix}")


def _printable(text: str) -> str:
    """Replace characters that could control a terminal: anyone can write them into a certificate or request."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _write_new(path: Path, text: Callable[[], str]) -> None:
    _refuse_existing(path)
    write_once(path, text())


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise DeployError(f"{path} exists: remove it first, or name another file")


_ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], list[str]]]] = {
    "authority": _authority,
    "host": _host,
    "user": _user,
    "request": _request,
    "sign": _sign,
    "show": _show,
}
