"""Loggers with typed fields: the one way in which the product writes to its log.

A line has a constant message and fields that vary, so that lines of a kind can be searched for and counted. How lines
look and where they go is decided in `daemon.logs`; the standard library's loggers stand between, because what we depend
on uses them as well.
"""

import logging
from collections.abc import Mapping
from typing import Final

RESERVED: Final = frozenset({"t", "level", "component", "msg", "traceback"})
"""What each line has beside its fields; no field is named so."""


class Logger:
    """A component's logger: ``logger.info("Refreshed a collection", namespace=str(namespace))``.

    A field may be given as a function without arguments, which is called only when the line is written.

    Args:
        component: such as ``router.cursors``.
        fields: what all its lines have.
    """

    __slots__ = ("_component", "_fields", "_logger")

    def __init__(self, component: str, fields: Mapping[str, object] | None = None) -> None:
        self._component = component
        self._fields = dict(fields or {})
        self._logger = logging.getLogger(component)

    def bind(self, **fields: object) -> "Logger":
        """A logger of the same component whose lines have these fields as well."""
        return Logger(self._component, {**self._fields, **fields})

    @property
    def is_debug_enabled(self) -> bool:
        """Whether debug lines are written at all, for fields that are costly to collect."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, message: str, /, **fields: object) -> None:
        """For debugging; the only level at which documents may appear."""
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """Something that an operator would put in the story of the day."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Something is off, and the daemon copes."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Something has failed that should not."""
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, /, *, raised: BaseException | None = None, **fields: object) -> None:
        """An error with the traceback of ``raised``, by default the exception that is being handled."""
        self._log(logging.ERROR, message, fields, raised or True)

    def _log(
        self, level: int, message: str, fields: Mapping[str, object], exception: BaseException | bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            every = {**self._fields, **fields}
            extra = {"fields": {name: value() if callable(value) else value for name, value in every.items()}}
            # The message is an argument so that a % in it stays a %.
            self._logger.log(level, "%s", message, extra=extra, exc_info=exception)


def get_logger(component: str) -> Logger:
    """The logger of a component."""
    return Logger(component)
