"""Displays of a process's configuration: as a file, in ``getCmdLineOpts`` and in its log.

No option holds a secret: passwords and keys are in files, and options only name these.
"""

from collections.abc import Iterator
from typing import Any

from shardwright.daemon.configuration.configuration import Configuration
from shardwright.daemon.configuration.option import Option


def nested_options(configuration: Configuration) -> dict[str, Any]:
    """Return the given options as sections, like ``parsed`` of ``getCmdLineOpts``; server parameters are text."""
    document: dict[str, Any] = {} if configuration.file is None else {"config": str(configuration.file)}
    for option, value in _given(configuration):
        put_path(document, option.path, value)
    return _sorted(document)


def flat_options(configuration: Configuration) -> dict[str, Any]:
    """Return the given options by name, for the log."""
    return {option.name: value for option, value in _given(configuration)}


def as_file(configuration: Configuration) -> str:
    """Return the configuration as a file that has the same effect, with defaults."""
    import yaml

    document: dict[str, Any] = {}
    for option in configuration.program.options:
        if option.name not in configuration.given and option.default is not None:
            put_path(document, option.path, option.type.in_file(option.default))
    for option, value in _given(configuration):
        put_path(document, option.path, value)
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def _given(configuration: Configuration) -> Iterator[tuple[Option, Any]]:
    for option in configuration.program.options:
        values = configuration.given.get(option.name, ())
        if option.is_mapping:
            pairs = (each.text.partition("=") for each in values)
            if values:
                yield option, {name: text for name, _, text in pairs}
        elif values:
            yield option, option.type.in_file(values[0].text)


def put_path(document: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401 - values of all types
    """Set the value at a path of a document; a mapping is merged into an existing one."""
    *sections, name = path.split(".")
    for section in sections:
        document = document.setdefault(section, {})
    if isinstance(value, dict):
        document.setdefault(name, {}).update(value)
    else:
        document[name] = value


def _sorted(document: dict[str, Any]) -> dict[str, Any]:
    return {name: _sorted(value) if isinstance(value, dict) else value for name, value in sorted(document.items())}
