"""Config server reads of a log-in: the same for every user name until the password is proven."""

import base64
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, cast

import pytest
import trio

from shardwright.config_servers.catalog_client import CatalogClient
from shardwright.daemon.users import UserName
from shardwright.router.access.login import Login, LogInCounts
from shardwright.router.access.mechanisms import ScramLogin
from shardwright.router.access.user_cache import AnybodySeen, UserCache
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.scram import MECHANISMS, ClientConversation, Mechanism, ScramKeys
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.cluster_auth import ClusterAuth

NONCE: Final = b"n" * 24
PASSWORD: Final = b"pencil"
SALT: Final = bytes(range(28))
KEYS: Final = ScramKeys.derive(Mechanism.SHA_256, PASSWORD, SALT, 4096)
ANN: Final = UserName("ann", "admin")
HERE: Final = ("127.0.0.1", "127.0.0.1")


class FakeCatalog(CatalogClient):
    """Config servers with one user, who has credentials for SHA-256 alone.

    Attributes:
        commands: the received commands.
        user_id: of the user; None if there is none.
        restrictions: of the user.
        answers: set while they answer.
        failure: the error that they answer instead.
    """

    def __init__(self) -> None:
        super().__init__(cast("Any", None), VectorClock())
        self.commands: list[Mapping[str, Any]] = []
        self.user_id: bytes | None = b"first"
        self.restrictions: list[dict[str, list[str]]] = []
        self.answers = trio.Event()
        self.answers.set()
        self.failure: CommandError | None = None

    async def ask(self, question: Mapping[str, Any], db: str = "admin") -> dict[str, Any]:
        assert db == "admin"
        self.commands.append(question)
        answer = self._answer(question)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        self.is_silent = False
        return answer

    def _answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        if command["usersInfo"] != [ANN.to_document()] or self.user_id is None:
            return {"users": []}
        described: dict[str, Any] = {**ANN.to_document(), "userId": self.user_id, "roles": []}
        if command.get("showCredentials"):
            values = {"salt": SALT, "storedKey": Mechanism.SHA_256.hash(KEYS.client), "serverKey": KEYS.server}
            shown = {name: base64.b64encode(value).decode() for name, value in values.items()}
            described["credentials"] = {Mechanism.SHA_256.value: {"iterationCount": 4096, **shown}}
        if command.get("showPrivileges"):
            described |= {"inheritedRoles": [], "inheritedPrivileges": []}
            described["authenticationRestrictions"] = self.restrictions
        return {"users": [described]}


def user_cache(catalog: FakeCatalog, nursery: trio.Nursery, seconds_max: float = 30.0) -> UserCache:
    return UserCache(catalog, lambda: seconds_max, AnybodySeen(), nursery)


def scram_login(users: UserCache) -> ScramLogin:
    return ScramLogin(users, ClusterAuth(ProcessTls(), keys=("a" * 60,)), LogInCounts(MECHANISMS))


def run(body: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> list[dict[str, Any]]:
    """Run something with config servers; returns what these were asked, with the same name for all users."""

    async def main() -> list[Mapping[str, Any]]:
        catalog = FakeCatalog()
        async with trio.open_nursery() as nursery:
            await body(catalog, scram_login(user_cache(catalog, nursery)), Login(), *arguments)
        return catalog.commands

    return [{**command, "usersInfo": "the user"} for command in trio.run(main)]


async def start(scram: ScramLogin, login: Login, user: str, mechanism: Mechanism, **options: Any) -> bytes:  # noqa: ANN401
    """The proof for the server's answer to the first message, with the right password if the user has one."""
    client = ClientConversation(user, NONCE)
    answer = await scram.start(login, "admin", mechanism.value, client.first, skips_empty=True, **options)
    first = client.read(answer)
    return client.prove(first, ScramKeys.derive(mechanism, PASSWORD, first.salt, first.iterations))


ATTEMPTS: Final = [("ann", Mechanism.SHA_256), ("ann", Mechanism.SHA_1), ("nobody", Mechanism.SHA_256)]


def test_a_log_in_that_fails_costs_the_same_whoever_is_asked_for() -> None:
    async def fail(_: FakeCatalog, scram: ScramLogin, login: Login, user: str, mechanism: Mechanism) -> None:
        proof = await start(scram, login, user, mechanism)
        wrong = proof[:-4] + (b"AAA=" if not proof.endswith(b"AAA=") else b"BBB=")
        with pytest.raises(CommandError) as caught:
            await scram.go_on(login, 1, wrong, HERE)
        assert caught.value.code == ErrorCode.AuthenticationFailed

    work = [run(fail, *attempt) for attempt in ATTEMPTS]
    assert work == [[{"usersInfo": "the user", "showCredentials": True}]] * len(ATTEMPTS)


def test_a_guess_in_a_hello_costs_the_same_too() -> None:
    async def guess(_: FakeCatalog, scram: ScramLogin, login: Login, user: str, mechanism: Mechanism) -> None:
        account = await scram.account_of(UserName(user, "admin"))
        try:
            await start(scram, login, user, mechanism, is_speculative=True, known=account)
        except CommandError:
            assert account.mechanisms is None or mechanism.value not in account.mechanisms

    work = [run(guess, *attempt) for attempt in ATTEMPTS]
    assert work == [[{"usersInfo": "the user", "showCredentials": True}]] * len(ATTEMPTS)


def test_what_a_user_may_do_is_read_when_the_password_is_proven() -> None:
    async def log_in(catalog: FakeCatalog, scram: ScramLogin, login: Login) -> None:
        proof = await start(scram, login, "ann", Mechanism.SHA_256)
        assert len(catalog.commands) == 1
        assert (await scram.go_on(login, 1, proof, HERE))[1]
        assert login.user == ANN

    credentials = {"usersInfo": "the user", "showCredentials": True}
    assert run(log_in) == [credentials, {**credentials, "showPrivileges": True, "showAuthenticationRestrictions": True}]


@pytest.mark.parametrize(
    "change",
    [
        lambda catalog: setattr(catalog, "user_id", b"another user of that name"),
        lambda catalog: setattr(catalog, "restrictions", [{"clientSource": ["192.0.2.1"]}]),
    ],
)
def test_what_changes_during_a_log_in_counts(change: Callable[[FakeCatalog], None]) -> None:
    async def log_in(catalog: FakeCatalog, scram: ScramLogin, login: Login) -> None:
        proof = await start(scram, login, "ann", Mechanism.SHA_256)
        change(catalog)
        with pytest.raises(CommandError) as caught:
            await scram.go_on(login, 1, proof, HERE)
        assert (caught.value.code, login.user) == (ErrorCode.AuthenticationFailed, None)

    run(log_in)
