"""Users who log in although there is no access control: answered as by a mongod, with no fewer rights than others."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from bson import Int64
from pymongo.errors import OperationFailure

from tests.integration.raw_client import raw_client
from tests.local_cluster import Client, RunningCluster
from tests.router.beside_mongod import Command, run

DB: Final = "open_log_ins"
USER: Final = "guest"
PASSWORD: Final = "secret"
ROUTER: Final = "router.0"
MONGOD: Final = "config.0.mongod"
"""The config servers have the users of the cluster."""

MECHANISMS: Final = ("SCRAM-SHA-1", "SCRAM-SHA-256")


@pytest.fixture(scope="module", autouse=True)
def user(router: Client) -> Iterator[None]:
    """The user, who may only read."""
    router[DB].command("createUser", USER, pwd=PASSWORD, roles=["read"])
    yield
    router[DB].command("dropUser", USER)


def logged_in(cluster: RunningCluster, name: str, **options: Any) -> Client:  # noqa: ANN401 - whatever MongoClient takes
    given = {"username": USER, "password": PASSWORD, "authSource": DB, **options}
    return cluster.direct(name, **given)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_has_logged_in(cluster: RunningCluster, mechanism: str) -> None:
    def status(name: str) -> object:
        with logged_in(cluster, name, authMechanism=mechanism) as client:
            return client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]["authenticatedUsers"]

    assert status(ROUTER) == status(MONGOD) == [{"user": USER, "db": DB}]


@pytest.mark.parametrize("options", [{"password": "wrong"}, {"username": "nobody"}, {"authSource": "other"}])
@pytest.mark.parametrize("mechanism", [*MECHANISMS, None])
def test_refused_log_ins(cluster: RunningCluster, mechanism: str | None, options: dict[str, str]) -> None:
    def refusal(name: str) -> tuple[object, object]:
        chosen = {} if mechanism is None else {"authMechanism": mechanism}
        with logged_in(cluster, name, **options, **chosen) as client:
            with pytest.raises(OperationFailure) as raised:
                client.admin.command("ping")
            assert raised.value.details is not None
            return raised.value.code, raised.value.details["errmsg"]

    assert refusal(ROUTER) == refusal(MONGOD) == (18, "Authentication failed.")


@pytest.mark.parametrize(
    "command",
    [
        {"saslStart": 1},
        {"saslStart": 1, "mechanism": "PLAIN", "payload": b""},
        {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b""},
        {"saslContinue": 1, "conversationId": 1, "payload": b""},
        {"authenticate": 1, "mechanism": "MONGODB-X509"},
        {"authenticate": 1, "mechanism": "MONGODB-CR"},
        {"logout": 1},
        {"hello": 1, "saslSupportedMechs": "nobody"},
    ],
    ids=str,
)
def test_answers_to_single_steps(router: Client, plain: Client, command: Command) -> None:
    def outcome(client: Client) -> tuple[object, ...]:
        reply = run(client, command, "admin")
        return reply["ok"], reply.get("code"), reply.get("errmsg")

    assert outcome(router) == outcome(plain)


@pytest.mark.parametrize(("name", "mechanisms"), [(USER, set(MECHANISMS)), ("nobody", None)])
def test_the_mechanisms_of_a_user(router: Client, plain: Client, name: str, mechanisms: set[str] | None) -> None:
    for client in (router, plain):
        found = client.admin.command("hello", saslSupportedMechs=f"{DB}.{name}").get("saslSupportedMechs")
        assert (None if found is None else set(found)) == mechanisms


def test_roles_and_users_forbid_nothing(cluster: RunningCluster, router: Client) -> None:
    with logged_in(cluster, ROUTER) as client:
        collection = client[DB].goods
        collection.insert_many([{"_id": number} for number in range(10)])
        with client.start_session() as session:
            cursor = collection.find(batch_size=2, session=session)
            next(cursor)
            # Nothing belongs to a user: others may go on with a cursor, and end it.
            assert cursor.cursor_id is not None
            cursor_id = Int64(cursor.cursor_id)
            more = {"getMore": cursor_id, "collection": "goods", "batchSize": 2, "lsid": session.session_id}
            kill = {"killCursors": "goods", "cursors": [cursor_id]}
            with raw_client(cluster.address(ROUTER)) as other:
                assert len(other.command(more, db=DB)["cursor"]["nextBatch"]) == 2
                assert other.command(kill, db=DB)["cursorsKilled"] == [cursor.cursor_id]
        with client.start_session() as session:
            session.start_transaction()
            collection.insert_one({"_id": "abandoned"}, session=session)
            router.admin.command("killSessions", [session.session_id])
            with pytest.raises(OperationFailure) as raised:
                session.commit_transaction()
            assert raised.value.code == 251
    assert router[DB].goods.count_documents({}) == 10


def test_a_dropped_user_is_logged_out(cluster: RunningCluster, router: Client) -> None:
    router[DB].command("createUser", "passing", pwd=PASSWORD, roles=[])
    with logged_in(cluster, ROUTER, username="passing", maxPoolSize=1) as client:
        assert client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        router[DB].command("dropUser", "passing")
        assert client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == []
        client[DB].goods.find_one()
