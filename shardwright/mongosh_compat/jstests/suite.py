"""A suite: a file, the tags in its first comment, its requirements, and the outcome of running it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

_TAGS: Final = re.compile(r"@tags:\s*\[(?P<tags>[^\]]*)\]")
_REMARK: Final = re.compile(r"#.*$", re.MULTILINE)
_OWN_DEPLOYMENT: Final = re.compile(r"\b(new\s+)?(ShardingTest|ReplSetTest)\s*\(|\bMongoRunner\.")
_WANTED_VERSION: Final = re.compile(r"requires_fcv_(?P<version>\d+)")

_VERSION: Final = 60
"""The version of MongoDB whose behaviour clusters have, in the format of tags."""

_UNMET: Final = {
    "requires_profiling": "a router has no profiler",
    "assumes_against_mongod_not_mongos": "the suite is for a mongod alone",
    "requires_mongobridge": "there is no mongobridge",
}
"""Tags of suites that cannot run on a cluster, with the reasons."""

_UNMET_BY_SHARED: Final = {"requires_auth": "the shared cluster has no access control"}
"""Tags of suites that can run on a cluster of their own only."""


@dataclass(frozen=True)
class Suite:
    """A suite.

    ``name`` is the path as given by the user. A suite without its own deployment uses the global ``db``.
    """

    path: Path
    name: str
    tags: frozenset[str]
    has_own_deployment: bool

    @classmethod
    def read(cls, path: Path) -> "Suite":
        text = path.read_text(encoding="utf-8")
        return cls(
            path.resolve(), str(path), tags_in(text), _OWN_DEPLOYMENT.search(_without_comments(text)) is not None
        )

    def reason_to_skip(self, excluded: Iterable[str] = ()) -> str | None:
        """Explain why the suite is not run; None if it is. ``excluded`` has further tags to skip."""
        for tag in sorted(self.tags):
            if tag in excluded:
                return f"tag {tag} is excluded"
            unmet = _UNMET if self.has_own_deployment else {**_UNMET, **_UNMET_BY_SHARED}
            if tag in unmet:
                return f"tag {tag}: {unmet[tag]}"
            if tag.startswith("featureFlag"):
                return f"tag {tag}: feature flags are off"
            version = _WANTED_VERSION.fullmatch(tag)
            if version is not None and int(version["version"]) > _VERSION:
                return f"tag {tag}: clusters are of MongoDB 6.0"
        return None


def tags_in(text: str) -> frozenset[str]:
    """Return the tags in the first comment that has any."""
    found = _TAGS.search(text)
    if found is None:
        return frozenset()
    listed = _REMARK.sub("", found["tags"])
    return frozenset(re.findall(r"[\w-]+", listed))


def find_suites(paths: Iterable[Path]) -> list[Suite]:
    """Find the suites in files, and in all files of directories except ``libs``; raises FileNotFoundError."""
    return [Suite.read(file) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*.js") if "libs" not in file.relative_to(path).parts)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    return [path]


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|^\s*//.*?$", "", text, flags=re.DOTALL | re.MULTILINE)


class Result(Enum):
    """Result of a suite; it is skipped if it needs something that is not available."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one suite, with the message of the failed assertion or the reason for skipping it."""

    suite: Suite
    result: Result
    message: str = ""
    line: int | None = None
    stack: str = ""
    output: str = ""
    seconds: float = 0.0

    @property
    def place(self) -> str:
        """The file, with the line that failed."""
        return self.suite.name if self.line is None else f"{self.suite.name}:{self.line}"
