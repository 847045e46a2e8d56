"""The tests that come with the source distributions of drivers.

They are fetched once into ``build/``, from wherever pip is configured to find packages, in the version and with the
hashes of ``requirements.lock``.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
_CACHE: Final = ROOT / "build" / "source_distributions"
_STAND_IN: Final = Path(__file__).parent / "build_backend"
_TESTS: Final = "test"


def source_distribution(package: str) -> Path:
    """A folder with the folder ``test`` of a package, fetched if it is not there yet."""
    requirement = _requirement(package)
    version = requirement.split()[0].partition("==")[2]
    folder = _CACHE / f"{package}-{version}"
    if not folder.is_dir():
        _fetch(requirement, folder)
    return folder


def _requirement(package: str) -> str:
    """A package's entry in the lock: a line for the version, and indented ones for the hashes."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{package}=="))
    entry = [lines[start]]
    for line in lines[start + 1 :]:
        if not line.lstrip().startswith("--hash="):
            break
        entry.append(line)
    return "\n".join(entry)


def _fetch(requirement: str, folder: Path) -> None:
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as name:
        scratch = Path(name)
        (scratch / "requirement.txt").write_text(requirement, encoding="utf-8")
        _download(scratch)
        (archive,) = scratch.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            tests = [member for member in packed if member.name.split("/")[1:2] == [_TESTS]]
            packed.extractall(scratch, tests, filter="data")
        try:
            (scratch / archive.name.removesuffix(".tar.gz")).rename(folder)
        except OSError:
            # Another run was faster.
            if not folder.is_dir():
                raise


def _download(scratch: Path) -> None:
    options = ["--no-binary=:all:", "--no-deps", "--no-build-isolation", "--require-hashes"]
    requirement = ["--requirement", str(scratch / "requirement.txt"), "--dest", str(scratch)]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *quiet, *options, *requirement],
        check=True,
        env={**os.environ, "PYTHONPATH": str(_STAND_IN)},
    )
