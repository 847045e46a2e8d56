"""The actions of the console: each has its effect in words, its command, and the privilege that it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from bson.json_util import loads

from shardwright.console.reader import Refused
from shardwright.console.sessions import Rights, Session
from shardwright.console.shell_text import shell_text, short_text
from shardwright.wire.logger import get_logger

Arguments = Mapping[str, str]

ACTION_SECONDS_MAX: Final = 600.0

_log = get_logger("console.audit")


class ActionFault(ValueError):
    """An argument is missing or not valid, or the user may not perform the action."""

    def __init__(self, text: str, *, is_of_rights: bool = False) -> None:
        super().__init__(text)
        self.is_of_rights = is_of_rights


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the console.

    Attributes:
        title: on the button.
        effect: describes the effect in a sentence.
        command: returns the command for the database ``admin``.
        needs: returns whether a user may perform the action.
        is_dangerous: whether clients notice it.
        leads_to: returns the page that shows the result.
    """

    name: str
    title: str
    effect: Callable[[Arguments], str]
    command: Callable[[Arguments], dict[str, Any]]
    needs: Callable[[Rights, Arguments], bool]
    leads_to: Callable[[Arguments], str]
    arguments: tuple[str, ...] = ()
    is_dangerous: bool = False

    def shell(self, arguments: Arguments) -> str:
        """Return the equivalent line of mongosh."""
        return f"db.adminCommand({shell_text(self.command(arguments))})"

    def check(self, arguments: Arguments) -> None:
        """Refuse missing or malformed arguments.

        Raises:
            ActionFault: an argument is missing or not valid.
        """
        missing = [name for name in self.arguments if not arguments.get(name)]
        if missing:
            raise ActionFault(f"{', '.join(missing)} is missing")
        try:
            self.command(arguments)
            self.effect(arguments)
        except (KeyError, TypeError, ValueError) as error:
            raise ActionFault(f"an argument is not valid: {error}") from error


def _bounds(arguments: Arguments) -> list[Any]:
    return [loads(arguments["min"]), loads(arguments["max"])]


def _range_text(arguments: Arguments) -> str:
    low, high = _bounds(arguments)
    return f"from {short_text(low)} up to {short_text(high)}"


def _may_on(action: str) -> Callable[[Rights, Arguments], bool]:
    def may(rights: Rights, arguments: Arguments) -> bool:
        db, _, collection = arguments.get("ns", "").partition(".")
        return rights.may(action, db, collection)

    return may


def _may_switch(rights: Rights, _arguments: Arguments) -> bool:
    return rights.may("update", "config", "settings")


def _to_collection(arguments: Arguments) -> str:
    return f"/collection?{urlencode({'ns': arguments['ns']})}"


ACTIONS: Final = {
    each.name: each
    for each in (
        Action(
            "balancer-start",
            "Start the balancer",
            lambda _: "The balancer begins its next round and may split, move and merge chunks of all collections.",
            lambda _: {"balancerStart": 1},
            _may_switch,
            lambda _: "/balancer",
        ),
        Action(
            "balancer-stop",
            "Stop the balancer",
            lambda _: (
                "The round in progress ends after its present moves; then no chunk is moved until someone starts it."
            ),
            lambda _: {"balancerStop": 1},
            _may_switch,
            lambda _: "/balancer",
        ),
        Action(
            "kill-operation",
            "Kill the operation",
            lambda given: (
                f"The operation {given['opid']} is interrupted, and its client receives an error. "
                "Writes that it has done stay, unless it is in a transaction."
            ),
            lambda given: {"killOp": 1, "op": given["opid"]},
            lambda rights, _: rights.may("killop"),
            lambda _: "/operations",
            ("opid",),
            is_dangerous=True,
        ),
        Action(
            "move-chunk",
            "Move the chunk",
            lambda given: (
                f"The chunk of {given['ns']} {_range_text(given)} moves to {given['to']}. "
                "Writes to it pause for a moment at the end."
            ),
            lambda given: {"moveChunk": given["ns"], "bounds": _bounds(given), "to": given["to"]},
            _may_on("moveChunk"),
            _to_collection,
            ("ns", "min", "max", "to"),
        ),
        Action(
            "split-chunk",
            "Split the chunk",
            lambda given: (
                f"The chunk of {given['ns']} {_range_text(given)} is split at the middle of its documents. "
                "No document moves."
            ),
            lambda given: {"split": given["ns"], "bounds": _bounds(given)},
            _may_on("splitChunk"),
            _to_collection,
            ("ns", "min", "max"),
        ),
    )
}


async def perform(session: Session, action: Action, arguments: Arguments, remote: str) -> None:
    """Perform an action on the user's own connection, and record it in the log.

    Raises:
        ActionFault: an argument is not valid, or the user may not perform the action.
    """
    action.check(arguments)
    audit = _log.bind(
        action=action.name,
        user=session.user or "(open access)",
        remote=remote,
        command=shell_text(action.command(arguments)),
    )
    if not action.needs(await session.rights(), arguments):
        audit.warning("Refused an action", reason="the user lacks the privilege")
        raise ActionFault("your roles do not allow this", is_of_rights=True)
    try:
        await session.reader.command(action.command(arguments), seconds_max=ACTION_SECONDS_MAX)
    except Refused as refused:
        audit.warning("An action failed", reason=str(refused))
        raise
    finally:
        session.reader.forget()
    audit.info("Performed an action")
