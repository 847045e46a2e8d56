"""The configuration file: YAML in the form of mongos and mongod, with the line of every mistake.

Values stay text until their options parse them, so that all sources accept the same. MongoDB's keys that have only one
meaning here are accepted with that meaning (`FIXED`), and refused with a reason otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardwright.daemon.configuration.option import Option, Program

if TYPE_CHECKING:
    import yaml

_PLAIN: Final = "tag:yaml.org,2002:"
_DIRECTIVES: Final = ("__exec", "__rest")


@dataclass(frozen=True, slots=True)
class FixedKey:
    """A key of MongoDB's files that has only one meaning here.

    Attributes:
        accepted: the values that match the only behaviour, as text. Empty if the key is never accepted, None if any
            value is, because it has no effect.
        reason: explanation of the restriction, with an alternative.
    """

    accepted: tuple[str, ...] | None
    reason: str


_PASSWORD: Final = "a password stands in a file of its own: give {}File, a file that only its owner may read"

FIXED: Final[Mapping[str, FixedKey]] = {
    "systemLog.destination": FixedKey(("file",), "the log goes to systemLog.path, or without it to standard error"),
    "systemLog.logAppend": FixedKey(("true",), "a daemon never truncates a log"),
    "systemLog.timeStampFormat": FixedKey(("iso8601-utc",), "times in the log are in UTC"),
    "systemLog.quiet": FixedKey(("false",), "the server parameter quiet says so (setParameter.quiet)"),
    "processManagement.timeZoneInfo": FixedKey(None, "mongods compute with time zones, and have their own option"),
    "processManagement.fork": FixedKey(("false",), "daemons stay in the foreground: start them with a service manager"),
    "net.ipv6": FixedKey(("true", "false"), "net.bindIp says whether IPv6 is used"),
    "net.bindIpAll": FixedKey(("false",), "write net.bindIp: '0.0.0.0,::'"),
    "net.wireObjectCheck": FixedKey(("true",), "requests are always checked"),
    "net.unixDomainSocket.enabled": FixedKey(
        ("true", "false"), "net.unixDomainSocket.pathPrefix turns UNIX sockets on, and its absence turns them off"
    ),
    "net.tls.FIPSMode": FixedKey(("false",), "there is no FIPS mode"),
    "net.tls.certificateKeyFilePassword": FixedKey((), _PASSWORD.format("net.tls.certificateKeyFilePassword")),
    "net.tls.clusterPassword": FixedKey((), _PASSWORD.format("net.tls.clusterPassword")),
    "net.compression.compressors": FixedKey(("snappy,zstd,zlib",), "clients choose among all of these compressors"),
    "replication.localPingThresholdMs": FixedKey(("15",), "the nearest members are those within 15 ms"),
    "security.authorization": FixedKey((), "security.keyFile or security.clusterAuthMode turns access control on"),
    "security.javascriptEnabled": FixedKey(("true",), "mongods run JavaScript, and have their own option"),
    "auditLog.format": FixedKey(("JSON",), "the audit log is written as JSON"),
    "sharding.clusterRole": FixedKey((), "each daemon has one role"),
}
"""The fixed keys by path."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """An option's value in a file.

    Attributes:
        text: the value, as the option parses it; of a mapping one NAME=VALUE.
        where: ``file:line``.
    """

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options that a file sets.

    Attributes:
        values: by the name of the option; only mappings may have several. An option without a usable value has none.
        mistakes: unknown keys, missing values and the like, one line each.
    """

    values: Mapping[str, Sequence[FileValue]]
    mistakes: tuple[str, ...]


class ConfigurationError(ValueError):
    """The configuration is invalid.

    Attributes:
        mistakes: the mistakes, one line each.
        is_of_command_line: whether to print the usage of the command line too.
    """

    def __init__(self, mistakes: Iterable[str], *, is_of_command_line: bool = False) -> None:
        self.mistakes = tuple(mistakes)
        self.is_of_command_line = is_of_command_line
        super().__init__("\n".join(self.mistakes))


def read_file(path: Path, program: Program, others: Iterable[Program] = (), name: str | None = None) -> FileOptions:
    """Read the options in a file.

    Args:
        others: other daemons, to explain options that are theirs.
        name: the name of the file in errors; None for its path.

    Raises:
        OSError: the file cannot be read.
        ConfigurationError: the file is not YAML in UTF-8.
    """
    shown = name or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"{shown}: this is not UTF-8"]) from error
    root = compose(text, shown)
    return FileOptions({}, ()) if root is None else options_of(root, shown, program, others)


def compose(text: str, name: str) -> "yaml.Node | None":
    """Return the nodes of YAML text; None if it is empty, ConfigurationError if it is not YAML."""
    import yaml  # only daemons that have a file need it

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError([yaml_fault(error, name)]) from error


def yaml_fault(error: Exception, name: str) -> str:
    """Describe an error of the YAML parser in one line, with its place."""
    import yaml

    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        return f"{where}: {error.problem or 'this is not YAML'}"
    return f"{name}: this is not YAML: {' '.join(str(error).split())}"


def options_of(root: "yaml.Node", name: str, program: Program, others: Iterable[Program] = ()) -> FileOptions:
    """Return the options in the nodes of a file, or of a part with the keys of a file."""
    reader = _Reader(name, program, others)
    reader.read(root)
    return FileOptions(reader.found, tuple(reader.mistakes))


class _Reader:
    """A collector of the options and mistakes of one file."""

    def __init__(self, name: str, program: Program, others: Iterable[Program]) -> None:
        self._name = name
        self._program = program
        self._others = tuple(others)
        self._options = {option.path: option for option in program.options}
        self._mapping = next((option for option in program.options if option.is_mapping), None)
        self._sections = {section for path in (*self._options, *FIXED) for section in _sections_of(path)}
        self.found: dict[str, list[FileValue]] = {}
        self.mistakes: list[str] = []
        self._given: set[str] = set()

    def read(self, node: "yaml.Node", prefix: str = "") -> None:
        """Read a section."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            what = f"{prefix} has to be a section with keys" if prefix else "the file has to consist of keys and values"
            self._mistake(node, what)
            return
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._mistake(key, "a key has to be a word")
                continue
            path = f"{prefix}.{key.value}" if prefix else str(key.value)
            # A key may be written with dots instead of a section, and a section in several parts.
            if path in seen or path in self._given:
                self._mistake(key, f"{path} is given twice")
            seen.add(path)
            self._read_key(key, path, value)

    def _read_key(self, key: "yaml.Node", path: str, value: "yaml.Node") -> None:
        option = self._options.get(path)
        is_part_of_mapping = self._mapping is not None and path.startswith(f"{self._mapping.path}.")
        if option is not None or path in FIXED or is_part_of_mapping:
            self._given.add(path)
        if option is not None and not option.is_mapping:
            self._keep(option, path, key, value)
        elif path in FIXED:
            self._check_fixed(path, key, value)
        elif path in self._sections or option is not None:
            if not is_null(value):
                self.read(value, path)
        elif self._mapping is not None and is_part_of_mapping:
            self._keep(self._mapping, path, key, value, f"{path.removeprefix(f'{self._mapping.path}.')}=")
        else:
            self._mistake(key, self._unknown(path))

    def _keep(self, option: Option, path: str, key: "yaml.Node", value: "yaml.Node", prefix: str = "") -> None:
        values = self.found.setdefault(option.name, [])
        text = self._text(path, key, value, option)
        if text is not None:
            values.append(FileValue(prefix + text, self._where(key)))

    def _text(self, path: str, key: "yaml.Node", value: "yaml.Node", option: Option) -> str | None:
        """Return the text of a value; None after a mistake."""
        import yaml

        if not isinstance(value, yaml.ScalarNode):
            is_directive = isinstance(value, yaml.MappingNode) and any(
                name.value in _DIRECTIVES for name, _ in value.value if isinstance(name, yaml.ScalarNode)
            )
            reason = "is not expanded by __exec or __rest" if is_directive else "has to be a single value"
            self._mistake(key, f"{path} {reason}")
            return None
        if is_null(value):
            self._mistake(key, f"{path} has no value")
            return None
        if value.tag == f"{_PLAIN}bool":
            return scalar_text(value)
        if option.type.schema.get("type") == "boolean":
            self._mistake(key, f"{path} has to be true or false")
            return None
        return str(value.value)

    def _check_fixed(self, path: str, key: "yaml.Node", value: "yaml.Node") -> None:
        fixed = FIXED[path]
        accepted = fixed.accepted
        if path == "sharding.clusterRole" and self._program.cluster_role is not None:
            accepted = (self._program.cluster_role,)
        given = str(getattr(value, "value", ""))
        if accepted is not None and given not in accepted:
            self._mistake(key, f"{path} cannot be {given}: {fixed.reason}" if accepted else f"{path}: {fixed.reason}")

    def _unknown(self, path: str) -> str:
        for other in self._others:
            if any(option.path == path or path in _sections_of(option.path) for option in other.options):
                return f"{path} is an option of {other.name}, not of {self._program.name}"
        mappings = {option.path for other in self._others for option in other.options if option.is_mapping}
        if path.rpartition(".")[0] in mappings:
            return f"unknown key {path}: {self._program.name} has no server parameters"
        if path.rpartition(".")[2] in _DIRECTIVES:
            return f"unknown key {path}: nothing is expanded here"
        nearest = nearest_path(path, {*self._options, *self._sections} - {*_sections_of(path)})
        return f"unknown key {path}" + (f"; did you mean {nearest}?" if nearest else "")

    def _where(self, node: "yaml.Node") -> str:
        return f"{self._name}:{node.start_mark.line + 1}"

    def _mistake(self, node: "yaml.Node", text: str) -> None:
        self.mistakes.append(f"{self._where(node)}: {text}")


def nearest_path(path: str, known: Iterable[str]) -> str | None:
    """Return the known path that a misspelt one most likely means; None if there is no near one.

    A key in the wrong section is found by its last word.
    """
    by_lower = {each.lower(): each for each in known}
    for candidate in get_close_matches(path.lower(), by_lower, n=1, cutoff=0.75):
        return by_lower[candidate]
    last_words = {lower.rpartition(".")[2]: each for lower, each in by_lower.items()}
    for candidate in get_close_matches(path.lower().rpartition(".")[2], last_words, n=1, cutoff=0.8):
        return last_words[candidate]
    return None


def _sections_of(path: str) -> Iterator[str]:
    """Yield the sections that contain a path."""
    words = path.split(".")
    for count in range(1, len(words)):
        yield ".".join(words[:count])


def scalar_text(node: "yaml.ScalarNode") -> str:
    """Return the text of a value as options parse it."""
    if node.tag == f"{_PLAIN}bool":
        return "true" if node.value.lower() in ("true", "yes", "on") else "false"
    return str(node.value)


def is_null(node: "yaml.Node") -> bool:
    """Whether a key has no value."""
    return bool(node.tag == f"{_PLAIN}null")
