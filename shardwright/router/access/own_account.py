"""Operations that users may do on their own account without the privileges required for other accounts. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.daemon.privileges import Resource
from shardwright.daemon.user_names import UserName
from shardwright.router.access.authorized_user import AuthorizedUser
from shardwright.router.access.needs import Need
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request

_CHANGES: Final[Mapping[bytes, str]] = {b"pwd": "changeOwnPassword", b"customData": "changeOwnCustomData"}
_OTHER_FIELDS: Final = frozenset({b"roles", b"mechanisms", b"authenticationRestrictions"})


def is_about_oneself(user: AuthorizedUser, name: str, request: Request) -> bool:
    """Whether a user may run a command because it concerns only that user.

    Args:
        name: the command, without aliases.
    """
    if name == "usersInfo":
        return all(_named(each, request.db, "user") == _pair(user.name) for each in _asked(request))
    if name == "rolesInfo":
        return all(_named(each, request.db, "role") in user.roles for each in _asked(request))
    if name == "updateUser":
        return _named(request.get(b"updateUser"), request.db, "user") == _pair(user.name) and _may_change(user, request)
    return False


def _may_change(user: AuthorizedUser, request: Request) -> bool:
    """Whether a user may make the changes that an ``updateUser`` on that user contains."""
    actions = [action for name, action in _CHANGES.items() if name in request.fields]
    if not actions or not _OTHER_FIELDS.isdisjoint(request.fields):
        return False
    return all(Need(action, Resource(request.db)).is_met(user.privileges) for action in actions)


def _asked(request: Request) -> Iterable[Any]:
    """Return the users or roles that the command names. A request for all of them yields one value without a name."""
    asked = request.get(request.name.encode())
    return asked if isinstance(asked, list) and asked else [asked]


def _named(value: Any, db: str, field: str) -> tuple[str, str]:  # noqa: ANN401 - whatever a client sent
    """Return the name and the database of a user or a role; empty strings if the value names neither."""
    if is_string(value):
        return value, db
    if isinstance(value, Mapping) and value.keys() == {field, "db"}:
        return str(value[field]), str(value["db"])
    return "", ""


def _pair(name: UserName) -> tuple[str, str]:
    return name.user, name.db
