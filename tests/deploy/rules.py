"""Reading the shipped rules of Prometheus."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from shardwright.deploy.observing import RULES

NAME: Final = re.compile(r"shardwright(?:_\((?:[a-z]+\|)+[a-z]+\)_[a-z_]+|[_:][a-z0-9_:]+)")
OF_PROCESSES: Final = re.compile(r"\bprocess_[a-z_]+")


def parsed(path: Path) -> Any:  # noqa: ANN401 - whatever the file has
    """The contents of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a shipped file."""
    groups = parsed(RULES / name)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expression: str) -> Iterator[str]:
    """All metrics that an expression names; an alternation of daemons stands for several."""
    for name in NAME.findall(expression):
        if "(" not in name:
            yield name
            continue
        before, daemons, after = re.split(r"[()]", name)
        yield from (f"{before}{daemon}{after}" for daemon in daemons.split("|"))
    without_ours = re.sub(r"shardwright[a-z0-9_:]*", "", expression)
    yield from OF_PROCESSES.findall(without_ours)


def selectors(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The series that an expression selects: each name with each combination of its labels' values."""
    for braces in re.finditer(r'(\{__name__=~"[^"]*"[^}]*\}|[a-z_:]+\{[^}]*\}|[a-z_:]+)', expression):
        text = braces[0]
        names = list(names_in(text))
        labels = dict(re.findall(r'(\w+)=~?"([^"]*)"', text.partition("{")[2]))
        labels.pop("__name__", None)
        labels.pop("job", None)
        for name in names:
            if not labels:
                yield name, {}
            for label, values in labels.items():
                for value in values.split("|"):
                    yield name, {label: value}
