"""The command `shardwright plan`: write the files of all hosts into folders, or show the differences.

::

    OUT/HOST/…         copied to /etc/shardwright of that host
    OUT/steps.txt      the commands to run on each host
    OUT/authority/     the authorities, with TLS (`deploy.certs`); copied to none of the hosts
    OUT/cluster-key    the key that every host gets

No host may have the name of one of these. Files with secrets are created once, and replaced only if they no longer fit.
Their contents are never shown.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from shardwright.daemon.authentication import read_key_file
from shardwright.daemon.configuration.file import ConfigurationError
from shardwright.deploy.access import new_key
from shardwright.deploy.authority import MALFORMED, alternative_names, key_fits, read_certificate, read_certificates
from shardwright.deploy.certs import RENEWAL, SERVERS, TlsFiles, authorities, host_names
from shardwright.deploy.description import AUTHORITY_FOLDER, CLUSTER_KEY, STEPS, Description, parse_description, schema
from shardwright.deploy.durable_files import is_unfinished, locked_directory, write_private, write_text
from shardwright.deploy.errors import DeployError, os_reason
from shardwright.deploy.host_files import (
    AUTHORITIES,
    AUTHORITY,
    HEADER,
    HOST_CERTIFICATE,
    KEY,
    UNITS,
    certificate_names,
    secrets_of,
    steps_text,
    texts_of,
)

EXIT_DIFFERENT: Final = 1
"""The exit status if the files differ and were not written; 2 after every error."""

DEFAULT_OUT: Final = Path("hosts")


class PlanError(DeployError):
    """The files cannot be planned; exits with 2, because 1 stands for a difference."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file whose contents are not shown.

    Attributes:
        text: creates its contents.
        fault: returns the reason to replace the present file; None to keep it.
    """

    path: Path
    text: Callable[[], str]
    fault: Callable[[Path], str | None]


@dataclass(frozen=True)
class Folder:
    """The planned files of a cluster."""

    root: Path
    description: Description

    def difference(self) -> Iterator[str]:
        """Yield the lines of a dry run: a unified diff of texts, and one line about each secret."""
        planned = self._texts()
        for path in sorted({*planned, *self._left_over(planned)}):
            # The present file may have another encoding.
            before = path.read_bytes().decode(errors="replace").splitlines() if path.exists() else []
            after = planned.get(path, "").splitlines()
            names = ("/dev/null" if not path.exists() else str(path), str(path) if path in planned else "/dev/null")
            yield from unified_diff(before, after, *names, lineterm="")
        for secret, fault in self._missing_secrets():
            yield f"{secret.path}: {fault}"

    def write(self) -> None:
        """Write the files that differ, and remove files of an earlier plan that are not in this one.

        Raises:
            DeployError: a file cannot be written, or the authority that signs certificates cannot be used.
        """
        planned = self._texts()
        self.root.mkdir(parents=True, exist_ok=True)
        with locked_directory(self.root):
            for path in self._left_over(planned):
                path.unlink()
            for host in self.description.addresses:
                (self.root / host).mkdir(mode=0o700, exist_ok=True)
                self._remove_unfinished_secrets(self.root / host)
            for path, text in planned.items():
                if not path.exists() or path.read_bytes() != text.encode():
                    write_text(path, text)
            for secret, _ in self._missing_secrets():
                write_private(secret.path, secret.text())

    def warnings(self) -> Iterator[str]:
        """Yield problems that writing the files does not solve."""
        file = self._authority.ca_file
        if self.description.has_tls and file.exists():
            last = min(each.not_valid_after_utc for each in read_certificates(file))
            if last - datetime.now(UTC) < RENEWAL:
                yield (
                    f"the authority in {file} expires on {last:%Y-%m-%d}, and every certificate with it: remove "
                    f"{file.parent} and plan again, then copy the files to all hosts and restart all processes"
                )

    def _texts(self) -> dict[Path, str]:
        found = {self.root / STEPS: steps_text(self.description)}
        for host in self.description.addresses:
            for name, text in texts_of(self.description, host).items():
                found[self.root / host / name] = text
        mistakes = [*self._moved_ports(found)]
        if mistakes:
            raise ConfigurationError(mistakes)
        return found

    def _moved_ports(self, planned: Mapping[Path, str]) -> Iterator[str]:
        """Yield the sets whose ports would move only because sets before them came or went.

        The members of a running set have their ports in its configuration, and the catalog has them too.
        """
        for each in (each for each in self.description.sets if each.is_port_counted):
            name = f"{each.role}-{each.name}.yaml"
            after = next(_port_in(text) for path, text in planned.items() if path.name == name)
            present = (path for path in sorted(self.root.glob(f"*/{name}")) if path.is_file() and _has_header(path))
            before = next((_port_in(path.read_bytes()) for path in present), after)
            if before != after:
                yield (
                    f"shards.{each.name}: its port would move from {before} to {after} because other shards before it "
                    f"were added or removed: write `port: {before}` there to keep it, or `port: {after}` to move it"
                )

    def _remove_unfinished_secrets(self, folder: Path) -> None:
        """Remove the temporary files of killed writers; the caller holds the lock, so there is no other writer."""
        for path in folder.iterdir():
            if any(is_unfinished(path.name, secret) for secret in secrets_of(self.description)):
                path.unlink()

    def _left_over(self, planned: dict[Path, str]) -> list[Path]:
        """Return the files of an earlier plan that are not in this one."""
        candidates = (path for path in sorted(self.root.glob("*/*")) if path not in planned and path.is_file())
        return [path for path in candidates if _has_header(path) or _is_planned_list(path)]

    def _missing_secrets(self) -> Iterator[tuple[SecretFile, str]]:
        """Yield the secrets that have to be created, each with the reason."""
        for secret in self._secrets():
            fault = secret.fault(secret.path) if secret.path.exists() else "new"
            if fault is not None:
                yield secret, fault

    def _secrets(self) -> Iterator[SecretFile]:
        names = secrets_of(self.description)
        files, key_file = self._authority, self.root / CLUSTER_KEY
        if self.description.has_tls:
            files.has_authority()
        if KEY in names:
            self._check_key(key_file)
            yield SecretFile(key_file, new_key, lambda _: None)
        sources = {KEY: key_file, AUTHORITY: files.ca_file, AUTHORITIES: files.authorities_file}
        for host in self.description.addresses:
            for name in names:
                path = self.root / host / name
                if name == HOST_CERTIFICATE:
                    yield self._certificate(path, host, files)
                else:
                    yield self._copy(path, sources[name])

    def _check_key(self, path: Path) -> None:
        """Refuse a key that was lost or damaged: with another one, restarted processes are shut out of the cluster."""
        if path.exists():
            try:
                read_key_file(path)
            except ValueError as error:
                raise DeployError(f"{error}: correct this, or put a copy of the file back") from error
            return
        copies = [self.root / host / KEY for host in self.description.addresses]
        copy = next((each for each in copies if each.exists()), None)
        if copy is not None:
            raise DeployError(
                f"{path} is missing, but {copy} exists: put it back (`cp {copy} {path}`); or, for a new key, remove "
                f"{KEY} from the folders of all hosts"
            )
        if path.is_symlink():
            raise DeployError(f"{path} is a symbolic link to a missing file: put that back, or remove the link")

    @property
    def _authority(self) -> TlsFiles:
        return TlsFiles(self.root / AUTHORITY_FOLDER)

    def _copy(self, path: Path, source: Path) -> SecretFile:
        def text() -> str:
            if source.parent == self._authority.directory:
                authorities(source.parent)
            return source.read_text(encoding="ascii")

        def fault(path: Path) -> str | None:
            is_same = source.exists() and source.read_bytes() == path.read_bytes()
            return None if is_same else f"differs from {source}"

        return SecretFile(path, text, fault)

    def _certificate(self, path: Path, host: str, files: TlsFiles) -> SecretFile:
        hosts = host_names(host, certificate_names(self.description, host))

        def fault(path: Path) -> str | None:
            try:
                certificate = read_certificate(path)
            except DeployError as error:
                return str(error).removeprefix(f"{path} ")
            left = certificate.not_valid_after_utc - datetime.now(UTC)
            lacking = set(hosts) - set(alternative_names(certificate.extensions))
            if lacking:
                return f"is not for {', '.join(sorted(lacking))}"
            issuer = _issuer(certificate, files.ca_file)
            if issuer is None:
                return f"is not signed by {files.ca_file}"
            if left < RENEWAL and certificate.not_valid_after_utc < issuer.not_valid_after_utc:
                return f"expires on {certificate.not_valid_after_utc:%Y-%m-%d}"
            return None if key_fits(path) else "has no key that fits its certificate"

        return SecretFile(path, lambda: authorities(files.directory)[0].issue(SERVERS, host, hosts), fault)


def _has_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(HEADER.encode())) == HEADER.encode()


def _port_in(text: str | bytes) -> Any:  # noqa: ANN401 - whatever the file has there
    """Return the port in the configuration of a daemon; None if it has none."""
    try:
        return yaml.safe_load(text)["net"]["port"]
    except (yaml.YAMLError, TypeError, LookupError, ValueError):
        return None


def _is_planned_list(path: Path) -> bool:
    """Whether a file is the list of units of an earlier plan, which has no header: it is beside files that have one."""
    return path.name == UNITS and any(each.is_file() and _has_header(each) for each in path.parent.iterdir())


def _issuer(certificate: x509.Certificate, authority: Path) -> x509.Certificate | None:
    """Return the authority that has issued a certificate; names do not tell authorities of the same title apart."""
    candidates = read_certificates(authority) if authority.exists() else []
    return next((each for each in candidates if _has_issued(each, certificate)), None)


def _has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*MALFORMED, InvalidSignature):
        return False
    return True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("description", type=Path, nargs="?", metavar="FILE", help="the description, cluster.yaml")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="folder of the files (default: %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the description instead")


def _text_of(description: Path) -> str:
    try:
        return description.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(f"{description} is not UTF-8") from error


def run_command(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.schema:
        print(json.dumps(schema(), indent=2, ensure_ascii=False))
        return 0
    if options.description is None:
        raise PlanError("name the description of the cluster: shardwright plan cluster.yaml")
    try:
        folder = Folder(options.out, parse_description(_text_of(options.description), str(options.description)))
        lines = list(folder.difference())
        if options.write:
            folder.write()
        warnings = list(folder.warnings())
    except ConfigurationError as error:
        raise PlanError("\n".join(error.mistakes)) from error
    except DeployError as error:
        raise PlanError(str(error)) from error
    except OSError as error:
        raise PlanError(f"cannot use {os_reason(error)}") from error
    for line in lines:
        print(line)
    for warning in warnings:
        print(f"shardwright: {warning}", file=sys.stderr)
    if lines and not options.write:
        print("nothing was written: add --write", file=sys.stderr)
        return EXIT_DIFFERENT
    return 0
