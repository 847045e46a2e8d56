"""One request of a logged-in user, with its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.json_util import loads

from shardwright.console.sampler import Sampler
from shardwright.console.sessions import Session
from shardwright.console.settings import Settings


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a logged-in user. Its methods raise `BadParameter` for missing or malformed parameters.

    Attributes:
        given: the parameters of the query, or the fields of the form.
    """

    session: Session
    given: Mapping[str, str]
    sampler: Sampler
    settings: Settings
    remote: str = ""

    def required(self, name: str) -> str:
        """Return a required parameter."""
        value = self.given.get(name, "")
        if not value:
            raise BadParameter(f"the parameter {name} is missing")
        return value

    def number(self, name: str) -> int | None:
        """Return a numeric parameter; None if it is missing."""
        text = self.given.get(name, "")
        if not text:
            return None
        if not text.isdecimal() or len(text) > _DIGITS_MAX:
            raise BadParameter(f"{name} must be a number")
        return int(text)

    def bound(self, name: str) -> dict[str, Any] | None:
        """Return a parameter with a chunk bound in Extended JSON; None if it is missing."""
        text = self.given.get(name, "")
        if not text:
            return None
        try:
            found = loads(text)
        except (TypeError, ValueError) as error:
            raise BadParameter(f"{name} must be a document in Extended JSON") from error
        if not isinstance(found, dict) or not found:
            raise BadParameter(f"{name} must be a document in Extended JSON")
        return found


_DIGITS_MAX: Final = 9


class BadParameter(ValueError):
    """A parameter is missing or not valid."""
