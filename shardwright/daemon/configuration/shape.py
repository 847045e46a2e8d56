"""Files with lists and freely named sections: their shape as data, read with the line of every mistake.

The files of the daemons have options at fixed paths (`file`). A shape describes a file with any nesting. Its values are
parsed by the same types.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shardwright.daemon.configuration.configuration import put_path
from shardwright.daemon.configuration.file import (
    ConfigurationError,
    compose,
    is_null,
    nearest_path,
    options_of,
    scalar_text,
    yaml_fault,
)
from shardwright.daemon.configuration.option import Program, ValueType

if TYPE_CHECKING:
    import yaml

_MERGE: Final = "tag:yaml.org,2002:merge"
_PARAMETERS: Final = "setParameter"
"""The section of MongoDB's files whose keys are names."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value."""

    type: ValueType
    help: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of single values."""

    of: Leaf
    help: str


@dataclass(frozen=True, slots=True)
class Named:
    """A section whose keys are names that the author chooses.

    Attributes:
        of: the shape of each value.
        name: parses a name; raises ValueError with a message for the user.
    """

    of: "Shape"
    help: str
    name: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Section:
    """A section with known keys."""

    keys: Mapping[str, "Shape"]
    help: str
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """Options of a daemon, as in its own file; the value is the part of that file, as nested dictionaries."""

    program: Program
    help: str


@dataclass(frozen=True, slots=True)
class Anything:
    """A section that another program checks."""

    help: str


Shape: TypeAlias = Leaf | Items | Named | Section | OptionsOf | Anything


@dataclass(frozen=True, slots=True)
class Located:
    """A parsed value, a list or a section of such values, with its place.

    Attributes:
        value: the parsed value of a leaf, a tuple for a list, a dictionary for a section.
        where: ``file:line``, for errors.
    """

    value: Any
    where: str

    def __getitem__(self, key: str) -> "Located":
        """Return the part of a section with this key."""
        found: Located = self.value[key]
        return found

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - values of all types
        """Return the value of a key; the default if the section does not have it."""
        return self.value[key].value if key in self.value else default


def read_shape(text: str, name: str, shape: Section) -> Located:
    """Read a file.

    Args:
        shape: its permitted contents.

    Raises:
        ConfigurationError: it is not YAML, or does not have that shape; with all mistakes.
    """
    root = compose(text, name)
    if root is None:
        raise ConfigurationError([f"{name}: the file is empty"])
    reader = _ShapeReader(name)
    found = reader.read(root, shape, "")
    if reader.mistakes:
        raise ConfigurationError(reader.mistakes)
    return found


@dataclass
class _ShapeReader:
    """A reader that collects the mistakes of one file."""

    name: str
    mistakes: list[str] = field(default_factory=list)

    def read(self, node: "yaml.Node", shape: Shape, path: str) -> Located:
        """Return the value of a node; after a mistake, which is recorded, a placeholder."""
        where = self._where(node)
        match shape:
            case Leaf():
                return Located(self._leaf(node, shape, path, where), where)
            case Items():
                return Located(self._items(node, shape, path, where), where)
            case OptionsOf():
                return Located(self._options(node, shape.program, path), where)
            case Anything():
                return Located(self._plain(node, path), where)
            case Named() | Section():
                return Located(self._section(node, shape, path, where), where)

    def _leaf(self, node: "yaml.Node", shape: Leaf, path: str, where: str) -> Any:  # noqa: ANN401
        import yaml

        if not isinstance(node, yaml.ScalarNode) or is_null(node):
            self.mistakes.append(f"{where}: {path} has to be a single value")
            return None
        try:
            return shape.type.parse(scalar_text(node))
        except ValueError as error:
            self.mistakes.append(f"{where}: {path}: {error}")
            return None

    def _items(self, node: "yaml.Node", shape: Items, path: str, where: str) -> tuple[Located, ...]:
        import yaml

        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.mistakes.append(f"{where}: {path} has to be a list")
            return ()
        return tuple(self.read(item, shape.of, f"{path}[{index}]") for index, item in enumerate(node.value))

    def _options(self, node: "yaml.Node", program: Program, path: str) -> dict[str, Any]:
        document: dict[str, Any] = {}
        if not self._is_section(node, path):
            return document
        found = options_of(node, self.name, program)
        self.mistakes += found.mistakes
        for name, values in found.values.items():
            option = program.option(name)
            for value in values:
                try:
                    option.type.parse(value.text)
                except ValueError as error:
                    self.mistakes.append(f"{value.where}: {option.path}: {error}")
                    continue
                if option.is_mapping:
                    key, _, text = value.text.partition("=")
                    put_path(document, option.path, {key: text})
                else:
                    put_path(document, option.path, option.type.in_file(value.text))
        return document

    def _section(self, node: "yaml.Node", shape: Named | Section, path: str, where: str) -> dict[str, Located]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            self.mistakes.append(f"{where}: {path or 'the file'} has to be a section with keys")
            return {}
        found: dict[str, Located] = {}
        seen: set[str] = set()
        for key, value in node.value:
            place = self._where(key)
            if not isinstance(key, yaml.ScalarNode):
                self.mistakes.append(f"{place}: a key has to be a word")
                continue
            inner = f"{path}.{key.value}" if path else str(key.value)
            if key.value in seen:
                self.mistakes.append(f"{place}: {inner} is given twice")
            seen.add(key.value)
            if isinstance(shape, Named):
                try:
                    shape.name(key.value)
                except ValueError as error:
                    self.mistakes.append(f"{place}: {inner}: {error}")
                found[key.value] = self.read(value, shape.of, inner)
            elif key.value in shape.keys:
                found[key.value] = self.read(value, shape.keys[key.value], inner)
            else:
                nearest = nearest_path(str(key.value), shape.keys)
                self.mistakes.append(
                    f"{place}: unknown key {inner}" + (f"; did you mean {nearest}?" if nearest else "")
                )
        if isinstance(shape, Section):
            for missing in (key for key in shape.required if key not in found):
                self.mistakes.append(f"{where}: {path or 'the file'} lacks {missing}")
        return found

    def _plain(self, node: "yaml.Node", path: str) -> dict[str, Any]:
        """Return the values of a section that another program checks, as nested dictionaries."""
        document: dict[str, Any] = {}
        if self._is_section(node, path):
            self._fill(document, node, path, has_names=False, seen={id(node)})
        return document

    def _fill(self, document: dict[str, Any], node: "yaml.Node", path: str, *, has_names: bool, seen: set[int]) -> None:
        """Fill a document from a section, whose keys may have dots instead of being sections.

        Args:
            has_names: whether the keys are names, which may have dots themselves.
            seen: the sections so far, because an alias could make a section part of itself.
        """
        import yaml

        given: set[str] = set()
        for key, value in node.value:
            words = [key.value] if has_names else str(key.value).split(".")
            inner = f"{path}.{key.value}"
            if not isinstance(key, yaml.ScalarNode) or not all(words) or key.tag == _MERGE:
                self._mistake(key, "a key has to be a word")
                continue
            section: Any = document
            for word in words[:-1]:
                section = section.setdefault(word, {}) if isinstance(section, dict) else None
            present = section.get(words[-1], {}) if isinstance(section, dict) else None
            if is_null(value):
                self._mistake(key, f"{inner} has no value")
            elif id(value) in seen:
                self._mistake(key, f"{inner} repeats a section by an alias: write it out")
            elif (
                key.value in given
                or not isinstance(present, dict)
                or (present and not isinstance(value, yaml.MappingNode))
            ):
                self._mistake(key, f"{inner} is given twice")
            elif isinstance(value, yaml.MappingNode):
                seen.add(id(value))
                inside = section.setdefault(words[-1], {})
                self._fill(inside, value, inner, has_names=words[-1] == _PARAMETERS, seen=seen)
            else:
                try:
                    section[words[-1]] = yaml.constructor.SafeConstructor().construct_document(value)
                except yaml.MarkedYAMLError as error:
                    self.mistakes.append(yaml_fault(error, self.name))
                except (ValueError, TypeError, OverflowError, RecursionError) as error:
                    self._mistake(value, f"{inner}: {error}")
            given.add(key.value)

    def _is_section(self, node: "yaml.Node", path: str) -> bool:
        """Whether a node is a section with keys; a value of another kind is a mistake, no value at all is none."""
        import yaml

        if not isinstance(node, yaml.MappingNode) and not is_null(node):
            self._mistake(node, f"{path} has to be a section with keys")
        return isinstance(node, yaml.MappingNode)

    def _where(self, node: "yaml.Node") -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def _mistake(self, node: "yaml.Node", text: str) -> None:
        self.mistakes.append(f"{self._where(node)}: {text}")


def shape_schema(shape: Shape, schema_of_program: Callable[[Program], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a shape."""
    match shape:
        case Leaf():
            return {**shape.type.schema, "description": shape.help}
        case Items():
            items = shape_schema(shape.of, schema_of_program)
            return {"type": "array", "items": items, "minItems": 1, "description": shape.help}
        case Named():
            values = shape_schema(shape.of, schema_of_program)
            return {"type": "object", "additionalProperties": values, "description": shape.help}
        case OptionsOf():
            part = {key: value for key, value in schema_of_program(shape.program).items() if key in _OF_SECTION}
            return {**part, "description": shape.help}
        case Anything():
            return {"type": "object", "description": shape.help}
        case Section():
            return {
                "type": "object",
                "additionalProperties": False,
                "properties": {key: shape_schema(each, schema_of_program) for key, each in shape.keys.items()},
                **({"required": list(shape.required)} if shape.required else {}),
                "description": shape.help,
            }


_OF_SECTION: Final = ("type", "additionalProperties", "properties")
