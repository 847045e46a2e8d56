"""The commands of docs/deployment.md, with the hosts on which they run."""

import re
from dataclasses import dataclass
from typing import Final

from tests.deployment.namespaces import ROOT

PAGE: Final = ROOT / "docs" / "deployment.md"
WORKSTATION: Final = "the workstation"
EVERY_HOST: Final = "every host"

_PART: Final = re.compile(r"^## (?P<title>.+)$|^```sh\n# on (?P<where>.+)\n(?P<text>(?:.*\n)*?)^```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block of commands.

    Attributes:
        section: the heading above it.
        where: the hosts, one after another; `EVERY_HOST` or `WORKSTATION`.
        is_simultaneous: whether it runs on all of them at the same time.
        script: for the shell.
    """

    section: str
    where: tuple[str, ...]
    is_simultaneous: bool
    script: str


def blocks() -> list[Block]:
    """All blocks in their order."""
    found, section = [], ""
    for part in _PART.finditer(PAGE.read_text(encoding="utf-8")):
        if part["title"]:
            section = part["title"]
            continue
        where, comma, rest = part["where"].partition(", at the same time")
        assert not rest
        together = where.split(" and ")
        hosts = tuple(together if len(together) > 1 else where.split(", then "))
        found.append(Block(section, hosts, bool(comma) or len(together) > 1, part["text"]))
    return found
