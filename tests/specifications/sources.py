"""The test files of MongoDB's specifications, which come with the source distribution of pymongo.

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
_CACHE: Final = ROOT / "build" / "specifications"
_FOLDERS: Final = ("discovery_and_monitoring", "server_selection", "max_staleness")
_STAND_IN: Final = Path(__file__).parent / "build_backend"


def specifications() -> Path:
    """The folder with the tests of each specification, fetched if it is not there yet."""
    requirement = _requirement()
    version = requirement.split()[0].partition("==")[2]
    folder = _CACHE / f"pymongo-{version}"
    if not folder.is_dir():
        _fetch(requirement, folder)
    return folder


def _requirement() -> str:
    """pymongo's entry in the lock: a line for the version, and indented ones for the hashes."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("pymongo=="))
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
            packed.extractall(scratch, [member for member in packed if _is_wanted(member.name)], filter="data")
        unpacked = scratch / archive.name.removesuffix(".tar.gz") / "test"
        try:
            unpacked.rename(folder)
        except OSError:
            # Another run was faster.
            if not folder.is_dir():
                raise


def _is_wanted(name: str) -> bool:
    return name.endswith(".json") and any(f"/test/{folder}/" in name for folder in _FOLDERS)


def _download(scratch: Path) -> None:
    options = ["--no-binary=:all:", "--no-deps", "--no-build-isolation", "--require-hashes"]
    requirement = ["--requirement", str(scratch / "requirement.txt"), "--dest", str(scratch)]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *quiet, *options, *requirement],
        check=True,
        env={**os.environ, "PYTHONPATH": str(_STAND_IN)},
    )


if __name__ == "__main__":
    specifications()
