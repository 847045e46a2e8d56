"""Phrases that mark sentences which read as if translated, and where they occur."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

PHRASES: Final = {
    "that of": r"\bthat of\b",
    "those of": r"\bthose of\b",
    "of which": r"\bof which\b",
    "to which": r"\bto which\b",
    "upon which": r"\bupon which\b",
    "see to it": r"\bsees? to (?:it|that)\b",
    "is no": r"(?<!\bthere )\bis no (?!longer\b|more\b)[a-z]+",
    "goes on": r"\bgo(?:es)? on\b",
    "anew": r"\banew\b",
    "under way": r"\bunder way\b",
    "nobody": r"\b(?-i:[Nn]obody)\b",
    "anybody": r"\banybody\b",
    "whoever": r"\bwhoever\b",
    "see above": r"\bsee above\b",
}
"""Each phrase with its pattern. A match finds a sentence to rewrite; swapping the words is no cure."""

_ANY: Final = re.compile("|".join(f"(?P<p{number}>{pattern})" for number, pattern in enumerate(PHRASES.values())), re.I)
_BETWEEN_LINES: Final = re.compile(r"\s+(?:#+ )?")


@dataclass(frozen=True)
class Occurrence:
    """A phrase in a file.

    Attributes:
        file: the path below the root of the repository.
        phrase: a key of `PHRASES`.
        context: the phrase with some words around it, on one line.
    """

    file: str
    phrase: str
    context: str


def pages() -> list[Path]:
    """Every page of the documentation, and the README."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def occurrences(path: Path) -> Iterator[Occurrence]:
    """The phrases of a file, also those that a line break divides."""
    text = _BETWEEN_LINES.sub(" ", path.read_text(encoding="utf-8"))
    names = list(PHRASES)
    for match in _ANY.finditer(text):
        assert match.lastgroup is not None
        context = text[max(0, match.start() - 60) : match.end() + 40]
        yield Occurrence(path.relative_to(ROOT).as_posix(), names[int(match.lastgroup[1:])], context)
