"""The command `shardwright plan`: write the files of all hosts into folders, or show the differences.

::

    OUT/HOST/…         copied to /etc/shardwright of that host
    OUT/steps.txt      the commands to run on each host
    OUT/authority/     the authorities, with TLS (`deploy.tls_files`); not for any host
    OUT/cluster-key    the key that every host gets

Files with secrets are created once, and replaced only if they no longer fit. Their contents are never shown.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from shardwright.daemon.configuration.file import ConfigurationError
from shardwright.deploy.access import new_key, write_once
from shardwright.deploy.authority import alternative_names
from shardwright.deploy.certs import RENEWAL, authorities, host_names, read_certificate
from shardwright.deploy.description import Description, parse_description, schema
from shardwright.deploy.durable_files import write_text
from shardwright.deploy.errors import DeployError
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
from shardwright.deploy.tls_files import SERVERS, TlsFiles

EXIT_DIFFERENT: Final = 1
"""The exit status if the files differ and were not written; 2 if the description is not valid."""

DEFAULT_OUT: Final = Path("hosts")
_STEPS: Final = "steps.txt"


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
            before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            after = planned.get(path, "").splitlines()
            names = ("/dev/null" if not path.exists() else str(path), str(path) if path in planned else "/dev/null")
            yield from unified_diff(before, after, *names, lineterm="")
        for secret, fault in self._missing_secrets():
            yield f"{secret.path}: {fault}"

    def write(self) -> None:
        """Write the files that differ, and remove files of an earlier plan that are not in this one.

        Raises:
            DeployError: the authority that signs certificates cannot be used.
        """
        planned = self._texts()
        for path in self._left_over(planned):
            path.unlink()
        for host in self.description.addresses:
            (self.root / host).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, text in planned.items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                write_text(path, text)
        for secret, _ in self._missing_secrets():
            secret.path.unlink(missing_ok=True)
            write_once(secret.path, secret.text())

    def _texts(self) -> dict[Path, str]:
        found = {self.root / _STEPS: steps_text(self.description)}
        for host in self.description.addresses:
            for name, text in texts_of(self.description, host).items():
                found[self.root / host / name] = text
        return found

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
        files = TlsFiles(self.root / "authority")
        key_file = self.root / "cluster-key"
        if KEY in names:
            yield SecretFile(key_file, new_key, lambda _: None)
        sources = {KEY: key_file, AUTHORITY: files.ca_file, AUTHORITIES: files.authorities_file}
        for host in self.description.addresses:
            for name in names:
                path = self.root / host / name
                if name == HOST_CERTIFICATE:
                    yield self._certificate(path, host, files)
                else:
                    yield self._copy(path, sources[name])

    def _copy(self, path: Path, source: Path) -> SecretFile:
        def text() -> str:
            if source.parent.name == "authority":
                authorities(source.parent)
            return source.read_text(encoding="ascii")

        def fault(path: Path) -> str | None:
            is_same = source.exists() and source.read_bytes() == path.read_bytes()
            return None if is_same else f"differs from {source}"

        return SecretFile(path, text, fault)

    def _certificate(self, path: Path, host: str, files: TlsFiles) -> SecretFile:
        hosts = host_names(host, certificate_names(self.description, host))

        def fault(path: Path) -> str | None:
            certificate = read_certificate(path)
            left = certificate.not_valid_after_utc - datetime.now(UTC)
            lacking = set(hosts) - set(alternative_names(certificate.extensions))
            if lacking:
                return f"is not for {', '.join(sorted(lacking))}"
            if left < RENEWAL:
                return f"expires on {certificate.not_valid_after_utc:%Y-%m-%d}"
            return None if _is_signed_by(certificate, files.ca_file) else f"is not signed by {files.ca_file}"

        return SecretFile(path, lambda: authorities(files.directory)[0].issue(SERVERS, host, hosts), fault)


def _has_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(HEADER.encode())) == HEADER.encode()


def _is_planned_list(path: Path) -> bool:
    """Whether a file is the list of units of an earlier plan, which has no header: it is beside files that have one."""
    return path.name == UNITS and any(each.is_file() and _has_header(each) for each in path.parent.iterdir())


def _is_signed_by(certificate: x509.Certificate, authority: Path) -> bool:
    """Whether an authority has signed a certificate; a new authority has the name of the one that it replaces."""
    if not authority.exists():
        return False
    try:
        certificate.verify_directly_issued_by(read_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
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


def run_command(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.schema:
        print(json.dumps(schema(), indent=2, ensure_ascii=False))
        return 0
    if options.description is None:
        raise PlanError("name the description of the cluster: shardwright plan cluster.yaml")
    try:
        text = options.description.read_text(encoding="utf-8")
        folder = Folder(options.out, parse_description(text, str(options.description)))
        lines = list(folder.difference())
        if options.write:
            folder.write()
    except UnicodeDecodeError as error:
        raise PlanError(f"{options.description} is not UTF-8") from error
    except ConfigurationError as error:
        raise PlanError("\n".join(error.mistakes)) from error
    except OSError as error:
        raise PlanError(f"cannot use {error.filename}: {error.strerror}") from error
    for line in lines:
        print(line)
    if lines and not options.write:
        print("nothing was written: add --write", file=sys.stderr)
        return EXIT_DIFFERENT
    return 0
