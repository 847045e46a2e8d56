"""Users of a router with access control, and its audit log, for tests of passages."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.audit_log import AuditLog, AuditOptions
from shardwright.daemon.users import UserName
from shardwright.sharding.clock import VectorClock
from tests.router.passage_router import DATABASE, PassageRouter

if TYPE_CHECKING:
    from shardwright.router.access.login import Login

ANN: Final = UserName("ann", "admin")
BEN: Final = UserName("ben", "admin")
HERE: Final = ("127.0.0.1", "127.0.0.1")

Privileges = Sequence[Mapping[str, Any]]

READ_AND_WRITE: Final[Privileges] = [
    {"resource": {"db": DATABASE, "collection": ""}, "actions": ["find", "insert", "update", "remove"]}
]
READ: Final[Privileges] = [{"resource": {"db": DATABASE, "collection": ""}, "actions": ["find"]}]
BYPASS: Final[Privileges] = [*READ_AND_WRITE, {"resource": {"cluster": True}, "actions": ["bypassWriteBlockingMode"]}]


class PassageUsers(CatalogClient):
    """Config servers with users.

    Attributes:
        privileges: by user.
        user_ids: by user; without one, there is no such user.
    """

    def __init__(self) -> None:
        super().__init__(cast("Any", None), VectorClock())
        self.privileges: dict[UserName, Privileges] = {ANN: READ_AND_WRITE, BEN: READ_AND_WRITE}
        self.user_ids: dict[UserName, bytes] = {ANN: b"ann", BEN: b"ben"}

    async def ask(self, question: Mapping[str, Any], db: str = "admin") -> dict[str, Any]:
        [asked] = question["usersInfo"]
        name = UserName(asked["user"], asked["db"])
        if name not in self.user_ids:
            return {"users": []}
        described: dict[str, Any] = {
            **name.to_document(),
            "userId": self.user_ids[name],
            "roles": [],
            "credentials": {},
        }
        described |= {"inheritedRoles": [], "inheritedPrivileges": [*self.privileges[name]]}
        return {"users": [described]}


def control_access(router: PassageRouter) -> PassageUsers:
    """Turn on the router's access control; to be called before the first client connects."""
    users, context = PassageUsers(), router.context
    context.access = context.log_ins
    context.log_ins.users._catalog = users
    return users


def log_in(router: PassageRouter, user: UserName = ANN) -> None:
    """Log all clients in as a user."""
    catalog = cast("PassageUsers", router.context.log_ins.users._catalog)
    for client in router.server.clients:
        login: Login = client.login
        login.user = None
        login.complete(user, catalog.user_ids.get(user, b"gone"), HERE)


def change_privileges(router: PassageRouter, privileges: Privileges, user: UserName = ANN) -> None:
    """Give a user other privileges through this router."""
    users = router.context.log_ins.users
    cast("PassageUsers", users._catalog).privileges[user] = privileges
    users.forget()


def replace_user(router: PassageRouter, user_id: bytes | None) -> None:
    """Drop a user through this router, and create another one of the same name if there is an id for it."""
    users = router.context.log_ins.users
    user_ids = cast("PassageUsers", users._catalog).user_ids
    user_ids.pop(ANN, None)
    if user_id is not None:
        user_ids[ANN] = user_id
    users.forget()


def audit_log(path: Path) -> AuditLog:
    """An audit log of everything."""
    return AuditLog(AuditOptions(path, lambda _: True))


def audited(path: Path) -> list[dict[str, Any]]:
    """The events in an audit log, without what differs between two runs."""
    lines = path.read_text().splitlines() if path.exists() else []
    changing = ("ts", "uuid", "local", "remote")
    return [{name: value for name, value in json.loads(line).items() if name not in changing} for line in lines]
