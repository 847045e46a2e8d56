"""The release before this one, built from the history of the repository, to be run alongside this one."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

FORMER_RELEASE: Final = "c619b10f069f7beb9e6c2d9a6c7467cb2243bf18"
"""The commit of the last release, or as long as there is none, the last one without feature versions."""

ROOT: Final = Path(__file__).parents[2]

_COMMAND_SECONDS: Final = 120.0


def absence() -> str | None:
    """Return the reason why the former release cannot be built here; None if it can."""
    git = shutil.which("git")
    if git is None:
        return "git is not installed"
    asked = [git, "-C", str(ROOT), "cat-file", "-e", f"{FORMER_RELEASE}^{{commit}}"]
    if subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        return f"the clone does not have the commit {FORMER_RELEASE}: it has no history, or only a part"
    return None


def build(directory: Path) -> Path:
    """Build the wheel of the former release, and return the directory from which its packages can be imported."""
    source, wheels, packages = (directory / name for name in ("source", "wheels", "packages"))
    archive = directory / "source.tar"
    needed = ("pyproject.toml", "README.md", "LICENSE", "shardwright")
    _run("git", "-C", str(ROOT), "archive", "--output", str(archive), FORMER_RELEASE, "--", *needed)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), directory=source)
    [wheel] = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as contents:
        contents.extractall(packages)
    return packages


def shardwright_of(packages: Path, *words: str) -> str:
    """Run the command ``shardwright`` of the former release, which starts its own daemons; returns its output."""
    words = (sys.executable, "-P", "-m", "shardwright.deploy.cli", *words)
    return _run(*words, environment={"PYTHONPATH": str(packages)})


def _run(*words: str, directory: Path | None = None, environment: dict[str, str] | None = None) -> str:
    completed = subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    assert completed.returncode == 0, f"{words}\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout
