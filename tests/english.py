"""Phrases and openings that mark sentences which read as if translated, and where they occur."""

import ast
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
"""Each phrase with its pattern. A match finds a sentence to rewrite; another word in its place is not enough."""

ODD_OPENINGS: Final = (
    "What",
    "How",
    "Who",
    "Whom",
    "Where",
    "Which",
    "When",
    "Why",
    "That",
    "Those",
    "Has",
    "Let",
    "Lets",
)
"""Words that do not open a docstring: a verb or a plain noun does, and "Whether" for booleans alone."""

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
    """Yield the phrases of a file, also across line breaks."""
    text = _BETWEEN_LINES.sub(" ", path.read_text(encoding="utf-8"))
    names = list(PHRASES)
    for match in _ANY.finditer(text):
        assert match.lastgroup is not None
        context = text[max(0, match.start() - 60) : match.end() + 40]
        yield Occurrence(path.relative_to(ROOT).as_posix(), names[int(match.lastgroup[1:])], context)


def odd_openings(path: Path) -> Iterator[tuple[int, str]]:
    """The line number and first line of each docstring, also of an attribute, that opens with one of `ODD_OPENINGS`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))) if text.split(maxsplit=1)[:1]:
                    first = text.split(maxsplit=1)[0].rstrip(",:;")
                    if first in ODD_OPENINGS:
                        yield each.lineno, text.strip().splitlines()[0]
