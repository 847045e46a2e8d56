"""Loggers with typed fields, used by all modules.

A line has a constant message and variable fields, so that lines of a kind can be searched for and counted.
`daemon.logs` defines format and destination. The lines pass through the standard library's loggers because our
dependencies use them as well.
"""

import logging
from collections.abc import Mapping
from typing import Final

RESERVED: Final = frozenset({"t", "level", "component", "msg", "traceback"})
"""Keys of every line; fields must have other names."""


class InternalErrors:
    """Counter of unexpected exceptions, which are logged with their tracebacks."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


INTERNAL_ERRORS: Final = InternalErrors()
"""The internal errors of this process."""


class Logger:
    """A component's logger: ``logger.info("Refreshed a collection", namespace=str(namespace))``.

    A field may be a function without arguments, called only if the line is written.
    """

    __slots__ = ("_component", "_fields", "_logger")

    def __init__(self, component: str, fields: Mapping[str, object] | None = None) -> None:
        self._component = component
        self._fields = dict(fields or {})
        self._logger = logging.getLogger(component)

    def bind(self, **fields: object) -> "Logger":
        """Return a logger of the same component that adds these fields to its lines."""
        return Logger(self._component, {**self._fields, **fields})

    def debug(self, message: str, /, **fields: object) -> None:
        """Log details for debugging; the only level at which documents may appear."""
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """Log a normal event that operators want to know about."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a problem that the daemon handles."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Log a failure that should not happen."""
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, /, *, raised: BaseException | None = None, **fields: object) -> None:
        """Log an unexpected error with its traceback, and count it in `INTERNAL_ERRORS`.

        The default of ``raised`` is the exception being handled.
        """
        INTERNAL_ERRORS.total += 1
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
    """Return the logger of a component."""
    return Logger(component)
