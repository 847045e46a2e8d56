"""The users of a closed deployment, and connections in their names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from shardwright.wire.scram import ClientConversation, Mechanism, ScramKeys
from tests.integration.raw_client import RawClient, raw_client
from tests.local_cluster import Client, RunningCluster

PASSWORD: Final = "pencil"
CUSTOM_ROLE: Final = "clerk"
SYSTEM: Final = "__system"

USERS: Final[dict[str, list[Any]]] = {
    "reader": [{"role": "read", "db": "shop"}],
    "writer": [{"role": "readWrite", "db": "shop"}],
    "designer": [{"role": "dbAdmin", "db": "shop"}],
    "watcher": [{"role": "clusterMonitor", "db": "admin"}],
    "manager": [{"role": "clusterManager", "db": "admin"}],
    "registrar": [{"role": "userAdmin", "db": "shop"}],
    "chief": [{"role": "root", "db": "admin"}],
    "custom": [{"role": CUSTOM_ROLE, "db": "admin"}],
    "nothing": [],
}
"""The users of admin, with their roles."""

_CUSTOM_PRIVILEGES: Final[list[dict[str, Any]]] = [
    {"resource": {"db": "shop", "collection": "goods"}, "actions": ["find", "update", "collStats"]},
    {"resource": {"db": "other", "collection": ""}, "actions": ["insert", "createIndex"]},
    {"resource": {"cluster": True}, "actions": ["serverStatus", "killop"]},
]


def create_users(root: Client) -> None:
    """Create the users and the role of one of them, as far as they are missing."""
    if not root.admin.command("rolesInfo", CUSTOM_ROLE)["roles"]:
        root.admin.command("createRole", CUSTOM_ROLE, privileges=_CUSTOM_PRIVILEGES, roles=[])
    known = {each["user"] for each in root.admin.command("usersInfo", 1)["users"]}
    for user, roles in USERS.items():
        if user not in known:
            root.admin.command("createUser", user, pwd=PASSWORD, roles=roles)


@contextmanager
def user_of(cluster: RunningCluster, user: str | None, process: str = "router.0", **options: str) -> Iterator[Client]:
    """A client of one process, in the name of a user."""
    given: dict[str, Any] = {"username": None} if user is None else {"username": user, "password": PASSWORD}
    with cluster.direct(process, **given, **options) as client:
        yield client


NONCE: Final = b"n" * 24
"""The client's part: the same in all log-ins, as an attacker would choose it."""


class LogIn:
    """A log-in by SCRAM-SHA-256 whose messages can be kept, changed and sent again."""

    def __init__(self, raw: RawClient, user: str, *, password: str = PASSWORD, db: str = "admin") -> None:
        self.raw = raw
        self.password = password
        self.db = db
        self.conversation = ClientConversation(user, NONCE)

    def start(self, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - any option
        """The reply to the first message."""
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": self.conversation.first}
        return self.raw.command({**start, "options": {"skipEmptyExchange": True}, **options}, db=self.db)

    def proof(self, payload: bytes) -> bytes:
        """Return the second message, for the server's answer to the first."""
        first = self.conversation.read(payload)
        mechanism = Mechanism.SHA_256
        keys = ScramKeys.derive(mechanism, self.password.encode(), first.salt, first.iterations)
        return self.conversation.prove(first, keys)

    def go_on(self, payload: bytes, conversation_id: int = 1) -> dict[str, Any]:
        """The reply to a further message."""
        return self.raw.command({"saslContinue": 1, "conversationId": conversation_id, "payload": payload}, db=self.db)

    def complete(self) -> bytes:
        """Log in; returns the proof that was sent."""
        proof = self.proof(self.start()["payload"])
        reply = self.go_on(proof)
        assert reply.get("done"), reply
        self.conversation.verify(reply["payload"])
        return proof


@contextmanager
def raw_user(cluster: RunningCluster, user: str, process: str = "router.0") -> Iterator[RawClient]:
    """A connection to one process that has logged in, and to whose commands nothing is added."""
    with raw_client(cluster.address(process)) as raw:
        LogIn(raw, user).complete()
        yield raw


@contextmanager
def identified(address: str, user: str | None, key: str) -> Iterator[RawClient]:
    """Connect in the name of a user, without one, or as the cluster itself, which is called `SYSTEM`.

    Args:
        address: ``host:port``.
        user: the user; None for no log-in.
        key: the password of the cluster.
    """
    with raw_client(address) as raw:
        if user == SYSTEM:
            LogIn(raw, SYSTEM, password=key, db="local").complete()
        elif user is not None:
            LogIn(raw, user).complete()
        yield raw
