"""The command `shardwright certs`: certificates for the hosts and users of a cluster on several machines.

The authority is a directory with the files of `TlsFiles`, which only its owner may read. A host or user can keep its
key on its own machine: the request is made there, and only the request travels.
"""

import argparse
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from shardwright.deploy.access import write_once
from shardwright.deploy.authority import Authority, CertificateRequest, alternative_names
from shardwright.deploy.errors import DeployError
from shardwright.deploy.tls_files import CLIENTS, SERVERS, TlsFiles

DEFAULT_AUTHORITY: Final = Path("authority")
RENEWAL: Final = timedelta(days=30)
"""Remaining validity below which a certificate is replaced."""


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
        raise DeployError(f"cannot use {error.filename}: {error.strerror}") from error
    return 0


def authorities(directory: Path) -> tuple[Authority, Authority]:
    """Return the authorities for hosts and for users, and create them if they do not exist."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return TlsFiles(directory).authorities()
    except (OSError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DeployError(f"cannot use the authority in {directory}: {reason}") from error


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
    hosts = host_names(options.subject, options.names)
    path: Path = options.out or Path(f"{options.subject}.pem")
    _write_new(path, lambda: authorities(options.authority)[0].issue(SERVERS, options.subject, hosts))
    return _described(path)


def _user(options: argparse.Namespace) -> list[str]:
    path: Path = options.out or Path(f"{options.subject}.pem")
    _write_new(path, lambda: authorities(options.authority)[1].issue(CLIENTS, options.subject, ()))
    return _described(path)


def _request(options: argparse.Namespace) -> list[str]:
    if options.user and options.names:
        raise DeployError("a user's certificate has no host names: omit them, or omit --user")
    key_file: Path = options.key or Path(f"{options.subject}.key")
    request_file: Path = options.out or Path(f"{options.subject}.csr")
    for path in (key_file, request_file):
        _refuse_existing(path)
    hosts = () if options.user else host_names(options.subject, options.names)
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
    hosts = alternative_names(certificate.extensions)
    subject = certificate.subject.rfc4514_string()
    return [
        f"{path}: {subject}, until {certificate.not_valid_after_utc:%Y-%m-%d}",
        f"  for {', '.join(hosts)}"
        if hosts
        else f'  db.getSiblingDB("$external").createUser({{ user: "{subject}", roles: […] }})',
    ]


def read_certificate(path: Path) -> x509.Certificate:
    """Read the first certificate in a file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except ValueError as error:
        raise DeployError(f"{path} has no certificate: {error}") from error


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
