"""Renders the chart with the used parts of Go's templates, sprig and Helm, because Helm is not available.

Anything else is an error, so that the chart stays within the tested parts.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

_ACTION: Final = re.compile(r"\{\{(?P<left>-)?\s*(?P<text>/\*.*?\*/|.*?)\s*(?P<right>-)?\}\}", re.DOTALL)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`|:=|[()|,]|-?\d+(?:\.\d+)?|\$?[\w.]+|\$')
_ENDED: Final = ("end", "else")


class TemplateError(ValueError):
    """The chart uses something that is not known here, or fails."""


@dataclass
class Node:
    """A part of a template: text, or an action with the parts inside it.

    Attributes:
        kind: text, print, set, if, with, range, define.
        text: the text, or the rest of the action.
        body: the parts inside.
        otherwise: the parts after its ``else``.
    """

    kind: str
    text: str = ""
    body: "list[Node]" = field(default_factory=list)
    otherwise: "list[Node]" = field(default_factory=list)


def _pieces(source: str) -> Iterator[tuple[str, str]]:
    """Texts and actions, with white space trimmed as the actions say."""
    position, trims = 0, False
    for found in _ACTION.finditer(source):
        text = source[position : found.start()]
        if trims:
            text = text.lstrip()
        if found["left"]:
            text = text.rstrip()
        yield "text", text
        if not found["text"].startswith("/*"):
            yield "action", found["text"]
        position, trims = found.end(), bool(found["right"])
    rest = source[position:]
    yield "text", rest.lstrip() if trims else rest


def _parse(pieces: Iterator[tuple[str, str]]) -> tuple[list[Node], str]:
    """The nodes up to an ``end`` or ``else``, and that action."""
    nodes: list[Node] = []
    for kind, text in pieces:
        word, _, rest = text.partition(" ")
        if kind == "text":
            nodes.append(Node("text", text))
        elif word in _ENDED:
            return nodes, text
        elif word in ("if", "with", "range", "define"):
            node = Node(word, rest)
            node.body, ending = _parse(pieces)
            if ending.startswith("else"):
                assert ending == "else", f"not known here: {ending}"
                node.otherwise, ending = _parse(pieces)
            assert ending == "end", f"{text} does not end"
            nodes.append(node)
        else:
            nodes.append(Node("set" if re.match(r"\$\w+ :=", text) else "print", text))
    return nodes, ""


def _indented(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _merged(target: dict[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    for other in others:
        for key, value in deepcopy(dict(other)).items():
            target.setdefault(key, value)
    return target


def _shown(value: Any) -> str:  # noqa: ANN401 - a value of a template
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _set(mapping: dict[str, Any], key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 - a value of a template
    mapping[key] = value
    return mapping


def _fail(message: str) -> None:
    raise TemplateError(message)


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "default": lambda otherwise, value=None: value or otherwise,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "eq": lambda left, right: left == right,
    "fail": _fail,
    "gt": lambda left, right: left > right,
    "hasKey": lambda mapping, key: key in mapping,
    "int": int,
    "merge": _merged,
    "nindent": lambda width, text: "\n" + _indented(width, text),
    "not": lambda value: not value,
    "prepend": lambda items, item: [item, *items],
    "printf": lambda form, *values: form % values,
    "quote": lambda value: json.dumps(_shown(value)),
    "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "set": _set,
    "toYaml": lambda value: yaml.safe_dump(value, sort_keys=True, default_flow_style=False).removesuffix("\n"),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda length, text: text[:length],
}


class Chart:
    """A chart.

    Args:
        folder: of the chart.
    """

    def __init__(self, folder: Path) -> None:
        self._chart = yaml.safe_load((folder / "Chart.yaml").read_text())
        self.values: dict[str, Any] = yaml.safe_load((folder / "values.yaml").read_text())
        self._templates: dict[str, list[Node]] = {}
        self._defined: dict[str, list[Node]] = {}
        for path in sorted((folder / "templates").iterdir()):
            nodes, ending = _parse(_pieces(path.read_text(encoding="utf-8")))
            assert ending == "", f"{path.name}: {ending} ends nothing"
            for node in nodes:
                if node.kind == "define":
                    self._defined[node.text.strip('"')] = node.body
            self._templates[path.name] = [node for node in nodes if node.kind != "define"]

    def render(self, changes: Mapping[str, Any], release: str = "db", namespace: str = "data") -> dict[str, str]:
        """The texts of the templates by their names.

        Args:
            changes: values in place of the defaults; mappings are merged, as Helm does.
            release: the name of the release.
            namespace: where it is installed.
        """
        root = {
            "Values": _over(self.values, changes),
            "Release": {"Name": release, "Namespace": namespace},
            "Chart": {"AppVersion": self._chart["appVersion"], "Name": self._chart["name"]},
        }
        return {
            name: self._run(nodes, root, {"$": root})
            for name, nodes in self._templates.items()
            if not name.startswith("_")
        }

    def documents(self, changes: Mapping[str, Any], **options: str) -> list[dict[str, Any]]:
        """The objects that the chart makes; arguments as `render`."""
        texts = self.render(changes, **options)
        loaded = (each for name, text in texts.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text))
        return [each for each in loaded if each]

    def _run(self, nodes: list[Node], dot: Any, variables: dict[str, Any]) -> str:  # noqa: ANN401
        parts = []
        for node in nodes:
            if node.kind == "text":
                parts.append(node.text)
            elif node.kind == "print":
                parts.append(_shown(self._value(node.text, dot, variables)))
            elif node.kind == "set":
                name, _, expression = node.text.partition(":=")
                variables[name.strip()] = self._value(expression, dot, variables)
            elif node.kind == "range":
                name, _, expression = node.text.partition(":=")
                items = self._value(expression, dot, variables)
                parts += [self._run(node.body, item, {**variables, name.strip(): item}) for item in items]
            else:
                value = self._value(node.text, dot, variables)
                inner = value if node.kind == "with" and value else dot
                parts.append(self._run(node.body if value else node.otherwise, inner, dict(variables)))
        return "".join(parts)

    def _value(self, expression: str, dot: Any, variables: Mapping[str, Any]) -> Any:  # noqa: ANN401
        leftover = _TOKEN.sub("", expression).strip()
        if leftover:
            raise TemplateError(f"not known here: {leftover!r} in {expression!r}")
        tokens = _TOKEN.findall(expression)
        value = self._pipeline(tokens, dot, variables)
        if tokens:
            raise TemplateError(f"unexpected {tokens[0]!r} in {expression!r}")
        return value

    def _pipeline(self, tokens: list[str], dot: Any, variables: Mapping[str, Any]) -> Any:  # noqa: ANN401
        value = self._call(tokens, dot, variables)
        while tokens and tokens[0] == "|":
            tokens.pop(0)
            value = self._call(tokens, dot, variables, value)
        return value

    def _call(self, tokens: list[str], dot: Any, variables: Mapping[str, Any], *piped: Any) -> Any:  # noqa: ANN401
        first = tokens[0]
        if not re.match(r"[a-zA-Z]", first) or first in ("true", "false"):
            return self._operand(tokens, dot, variables)
        tokens.pop(0)
        arguments = []
        while tokens and tokens[0] not in ("|", ")"):
            arguments.append(self._operand(tokens, dot, variables))
        if first == "include":
            name, scope = arguments
            if name not in self._defined:
                raise TemplateError(f"nothing is defined as {name}")
            return self._run(self._defined[name], scope, {"$": scope})
        if first not in _FUNCTIONS:
            raise TemplateError(f"the function {first} is not known here")
        return _FUNCTIONS[first](*arguments, *piped)

    def _operand(self, tokens: list[str], dot: Any, variables: Mapping[str, Any]) -> Any:  # noqa: ANN401
        token = tokens.pop(0)
        if token == "(":
            value = self._pipeline(tokens, dot, variables)
            if not tokens or tokens.pop(0) != ")":
                raise TemplateError("a parenthesis is not closed")
            return value
        if token[0] in '"`':
            return json.loads(token) if token[0] == '"' else token[1:-1]
        if re.fullmatch(r"-?\d+(\.\d+)?", token):
            return json.loads(token)
        if token in ("true", "false"):
            return token == "true"
        name, _, path = token.partition(".")
        value = dot if name == "" else variables[name]
        for key in filter(None, path.split(".")):
            if not isinstance(value, Mapping):
                raise TemplateError(f"{token}: there is nothing that has {key}")
            value = value.get(key)
        return value


def _over(defaults: Any, changes: Any) -> Any:  # noqa: ANN401
    if isinstance(defaults, Mapping) and isinstance(changes, Mapping):
        return {key: _over(defaults.get(key), changes.get(key, defaults.get(key))) for key in {**defaults, **changes}}
    return deepcopy(changes)
