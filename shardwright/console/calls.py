"""One request of a user who is logged in, with its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.json_util import loads

from shardwright.console.sampler import Sampler
from shardwright.console.sessions import Session
from shardwright.console.settings import Settings


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a user who is logged in.

    Attributes:
        session: of the user.
        given: the parameters of the query, or the fields of the form.
        sampler: the cluster's metrics.
        settings: of the console.
        remote: address of the browser.
    """

    session: Session
    given: Mapping[str, str]
    sampler: Sampler
    settings: Settings
    remote: str = ""

    def required(self, name: str) -> str:
        """A parameter that has to be there.

        Raises:
            BadParameter: it is missing.
        """
        value = self.given.get(name, "")
        if not value:
            raise BadParameter(f"the parameter {name} is missing")
        return value

    def number(self, name: str) -> int | None:
        """A parameter that is a number; None without it.

        Raises:
            BadParameter: it is not a number.
        """
        text = self.given.get(name, "")
        if not text:
            return None
        if not text.isdecimal() or len(text) > _DIGITS_MAX:
            raise BadParameter(f"{name} must be a number")
        return int(text)

    def bound(self, name: str) -> dict[str, Any] | None:
        """A parameter that is a bound of a chunk in Extended JSON; None without it.

        Raises:
            BadParameter: it is not a document.
        """
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
