"""The actions of the console: each has its effect in words, its command, and the privilege that it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from shardwright.console.any_value import value_of
from shardwright.console.reader import LoggedOut, Refused
from shardwright.console.sessions import Rights, Session
from shardwright.console.shell_syntax import extended_document, shell_text, short_text
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
    return [value_of(arguments[name]) for name in ("min", "max")]


def _of_cluster(action: str) -> Callable[[Rights, Arguments], bool]:
    return lambda rights, _: rights.may(action)


def _zone_range(arguments: Arguments) -> dict[str, Any]:
    bounds = {name: extended_document(arguments[name]) for name in ("min", "max")}
    return {"updateZoneKeyRange": arguments["ns"], **bounds, "zone": arguments["zone"]}


def _may_assign_zones(rights: Rights, _arguments: Arguments) -> bool:
    return rights.may("enableSharding") or rights.may("update", "config", "tags")


def _may_name_zones(rights: Rights, _arguments: Arguments) -> bool:
    return rights.may("enableSharding") or rights.may("update", "config", "shards")


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
        Action(
            "drain-shard",
            "Drain the shard",
            lambda given: (
                f"The balancer moves all chunks from {given['shard']} to other shards, and no chunk to it. "
                "Clients continue to read and write."
            ),
            lambda given: {"removeShard": given["shard"]},
            _of_cluster("removeShard"),
            lambda _: "/balancer",
            ("shard",),
            is_dangerous=True,
        ),
        Action(
            "add-shard",
            "Add the shard",
            lambda given: (
                f"The replica set {given['host'].partition('/')[0]} becomes a shard. The balancer moves chunks to it."
            ),
            lambda given: {"addShard": given["host"]},
            _of_cluster("addShard"),
            lambda _: "/balancer",
            ("host",),
        ),
        Action(
            "add-shard-to-zone",
            "Add the shard to the zone",
            lambda given: (
                f"{given['shard']} may have chunks of the ranges of zone {given['zone']}. "
                "The balancer divides them between all shards of the zone."
            ),
            lambda given: {"addShardToZone": given["shard"], "zone": given["zone"]},
            _may_name_zones,
            lambda _: "/balancer",
            ("shard", "zone"),
        ),
        Action(
            "assign-zone",
            "Assign the range to the zone",
            lambda given: (
                f"Documents of {given['ns']} from {short_text(extended_document(given['min']))} up to "
                f"{short_text(extended_document(given['max']))} may be on the shards of zone {given['zone']} alone. "
                "The balancer moves their chunks there."
            ),
            _zone_range,
            _may_assign_zones,
            _to_collection,
            ("ns", "min", "max", "zone"),
        ),
        Action(
            "reshard-collection",
            "Reshard the collection",
            lambda given: (
                f"{given['ns']} is copied to a new distribution by {short_text(extended_document(given['key']))}, "
                "while clients read and write. They notice the pause of writes at the end."
            ),
            lambda given: {"reshardCollection": given["ns"], "key": extended_document(given["key"])},
            _may_on("reshardCollection"),
            _to_collection,
            ("ns", "key"),
            is_dangerous=True,
        ),
    )
}


async def perform(session: Session, action: Action, arguments: Arguments, remote: str) -> None:
    """Perform an action on the user's own connection; log it before it is sent, and log its outcome.

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
    audit.info("Started an action")
    try:
        await session.reader.command(action.command(arguments), seconds_max=ACTION_SECONDS_MAX)
    except (LoggedOut, Refused) as refused:
        is_lost = isinstance(refused, Refused) and refused.is_away
        message = "An action ended without a known result" if is_lost else "An action failed"
        audit.warning(message, reason=str(refused))
        raise
    except BaseException as error:  # also a cancellation, when the console ends
        audit.warning("An action ended without a known result", reason=str(error) or type(error).__name__)
        raise
    finally:
        session.reader.forget()
    audit.info("Performed an action")
