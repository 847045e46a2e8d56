"""A fault at each step of a commit on two shards, as applications see it: a driver commits until it knows the outcome.

The driver continues through the other router if its own one has died. Then both shards and both routers agree on the
outcome, nothing stays prepared, and the same documents can be changed again.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandListener, CommandStartedEvent, CommandSucceededEvent

from shardwright.daemon.users import UserName
from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import LOWER, UPPER, Document, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, credentials_for
from tests.migration.fault_cluster import FaultCluster, fault_cluster
from tests.migration.invariants import wait_decided

COORDINATOR: Final = f"{LOWER}.0"
"""The shard of the first statement."""
PARTICIPANT: Final = f"{UPPER}.0"
FIRST_ROUTER: Final = "router.0"

LOW, HIGH = {"_id": "low", "key": 1}, {"_id": "high", "key": 900}

BEFORE_DECISION: Final = (
    "hangBeforeWritingParticipantList",
    "hangBeforeWaitingForParticipantListWriteConcern",
    "hangBeforeSendingPrepare",
    "hangBeforeWritingDecision",
)
COMMITTED: Final = (
    "hangBeforeWaitingForDecisionWriteConcern",
    "hangBeforeSendingCommit",
    "hangBeforeDeletingCoordinatorDoc",
    "hangAfterDeletingCoordinatorDoc",
)
"""With one member, persisted state is there after a restart."""

VICTIMS: Final = (
    (f"{COORDINATOR}.shardd",),
    (f"{COORDINATOR}.mongod",),
    (f"{COORDINATOR}.mongod", f"{COORDINATOR}.shardd"),
    (f"{PARTICIPANT}.shardd",),
    (f"{PARTICIPANT}.mongod",),
    (f"{PARTICIPANT}.mongod", f"{PARTICIPANT}.shardd"),
    (FIRST_ROUTER,),
)

TRANSFERRED: Final = {"low": 90, "high": 110}
DEPOSITED: Final = {"low": 100, "high": 110}
NOTHING_DONE: Final = {"low": 100, "high": 100}

OUTCOME_SECONDS_MAX: Final = 90.0
NO_SUCH_TRANSACTION: Final = 251


class Tokens(CommandListener):
    """The fields from which another router can find the outcome of the last transaction.

    Attributes:
        fields: ``lsid`` and ``txnNumber`` of its statements.
        recovery_token: the newest one.
    """

    def __init__(self) -> None:
        self.fields: Document = {}
        self.recovery_token: Document = {}

    def started(self, event: CommandStartedEvent) -> None:
        """Remember the numbers of a statement."""
        if event.command.get("startTransaction"):
            self.fields = {field: event.command[field] for field in ("lsid", "txnNumber")}

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Remember the token."""
        self.recovery_token = event.reply.get("recoveryToken", self.recovery_token)

    def failed(self, event: object) -> None:
        """Errors have no tokens."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    """A cluster whose processes are killed."""
    with fault_cluster(tmp_path_factory.mktemp("commits")) as cluster:
        shard_by_range(cluster.router()["commits"], "accounts")
        yield cluster


@pytest.fixture
def tokens() -> Tokens:
    """Of the application's transaction."""
    return Tokens()


@pytest.fixture
def application(faulty: FaultCluster, tokens: Tokens) -> Iterator[Client]:
    """A client of both routers that uses the first one as long as it is there."""
    reset(faulty)
    first = faulty.router_addresses[0]

    def prefer_first(servers: list[Any]) -> list[Any]:
        return [each for each in servers if f"{each.address[0]}:{each.address[1]}" == first] or servers

    with MongoClient[dict[str, Any]](
        faulty.router_addresses,
        server_selector=prefer_first,
        event_listeners=[tokens],
        serverSelectionTimeoutMS=5_000,  # a session waits so long for the router that it is pinned to
        socketTimeoutMS=10_000,
        **credentials_for(first).options,
    ) as client:
        # Otherwise it would prefer the one that it has found so far.
        eventually(lambda: client.admin.command("ping")["ok"] and len(client.nodes) == 2, what="it knows both routers")
        yield client


def accounts(client: Client) -> Any:  # noqa: ANN401 - a pymongo collection
    """The collection of both accounts."""
    return client["commits"].get_collection("accounts", write_concern=WriteConcern("majority"))


def reset(cluster: FaultCluster) -> None:
    """Put 100 on both accounts, which needs that no transaction holds them."""
    for account in (LOW, HIGH):
        accounts(cluster.router(1)).update_one(account, {"$set": {"balance": 100}}, upsert=True)


def transfer(client: Client, session: ClientSession) -> None:
    """Move 10 from the coordinator's shard to the other one."""
    accounts(client).update_one(LOW, {"$inc": {"balance": -10}}, session=session)
    accounts(client).update_one(HIGH, {"$inc": {"balance": 10}}, session=session)


class RunningCommit:
    """A commit in a thread, repeated until its outcome is known, as applications do."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._outcome: bool | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> bool:
        """Whether the transaction was committed, otherwise it was aborted.

        Raises:
            AssertionError: that is not known in time.
        """
        self._thread.join(OUTCOME_SECONDS_MAX)
        if self._failure is not None:
            raise self._failure
        assert self._outcome is not None, "the outcome is still unknown"
        return self._outcome

    def _run(self) -> None:
        deadline = time.monotonic() + OUTCOME_SECONDS_MAX
        while self._outcome is None and self._failure is None and time.monotonic() < deadline:
            try:
                self._session.commit_transaction()
                self._outcome = True
            except PyMongoError as error:
                if error.has_error_label("UnknownTransactionCommitResult"):
                    continue
                if error.has_error_label("TransientTransactionError"):
                    self._outcome = False
                else:
                    self._failure = error


@contextmanager
def killed(cluster: FaultCluster, *names: str) -> Iterator[None]:
    """Processes that are dead during the block; a mongod is restarted before its daemon."""
    for name in names:
        cluster.kill(name)
    try:
        yield
    finally:
        for name in names:
            cluster.restart(name)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
@pytest.mark.parametrize("place", [*BEFORE_DECISION, *COMMITTED])
def test_kill(faulty: FaultCluster, application: Client, tokens: Tokens, place: str, victims: tuple[str, ...]) -> None:
    with application.start_session() as session:
        session.start_transaction()
        transfer(application, session)
        with fail_point(faulty.client(f"{COORDINATOR}.shardd"), place) as point:
            commit = RunningCommit(session)
            point.wait_entered()
            with killed(faulty, *victims):
                if victims == (FIRST_ROUTER,):
                    # The commit itself goes on without its router.
                    point.turn_off()
                    is_committed = commit.wait()
            point.turn_off()
            is_committed = commit.wait()
    assert is_committed or place in BEFORE_DECISION
    check_settled(faulty, tokens, is_committed=is_committed)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_kill_during_an_abort(
    faulty: FaultCluster, application: Client, tokens: Tokens, victims: tuple[str, ...]
) -> None:
    with application.start_session() as session:
        session.start_transaction()
        transfer(application, session)
        lose_transaction(faulty, tokens)
        with fail_point(faulty.client(f"{COORDINATOR}.shardd"), "hangBeforeSendingAbort") as point:
            commit = RunningCommit(session)
            point.wait_entered()
            with killed(faulty, *victims):
                if victims == (FIRST_ROUTER,):
                    point.turn_off()
            point.turn_off()
            is_committed = commit.wait()
    assert not is_committed
    check_settled(faulty, tokens, is_committed=False)


@pytest.mark.exhaustive  # the router looks for the shard for a long time
def test_coordinator_that_the_router_cannot_find(faulty: FaultCluster, application: Client, tokens: Tokens) -> None:
    """A commit that fails reveals nothing about the earlier attempt, in which the participants prepared."""
    with application.start_session() as session:
        session.start_transaction()
        transfer(application, session)
        with fail_point(faulty.client(f"{COORDINATOR}.shardd"), "hangBeforeWritingDecision") as point:
            commit = RunningCommit(session)
            point.wait_entered()
            with (
                killed(faulty, f"{COORDINATOR}.mongod", f"{COORDINATOR}.shardd"),
                raw_client(faulty.router_addresses[0]) as router,
            ):
                router.socket.settimeout(OUTCOME_SECONDS_MAX)
                reply = router.command(recovery(tokens))
                assert reply["code"] == ErrorCode.FailedToSatisfyReadPreference, reply
                assert "errorLabels" not in reply
            point.turn_off()
            assert commit.wait()
    check_settled(faulty, tokens, is_committed=True)


LOSSES: Final[dict[str, tuple[str, Document]]] = {
    "prepare": ("failCommand", {"failCommands": ["prepareTransaction"], "closeConnection": True}),
    "reply to prepare": ("participantReturnNetworkErrorForPrepareAfterExecutingPrepareLogic", {}),
    "commit": ("failCommand", {"failCommands": ["commitTransaction"], "closeConnection": True}),
    "error of a commit": (
        "failCommand",
        {"failCommands": ["commitTransaction"], "writeConcernError": {"code": 64, "errmsg": "waiting timed out"}},
    ),
}


@pytest.mark.matrix(share=0.6)
@pytest.mark.parametrize("shard", [COORDINATOR, PARTICIPANT])
@pytest.mark.parametrize("lost", LOSSES)
def test_message_of_a_coordinator_that_is_lost(
    faulty: FaultCluster, application: Client, tokens: Tokens, lost: str, shard: str
) -> None:
    """Between a shard's daemon and its mongod. It is sent again."""
    name, data = LOSSES[lost]
    mongod = faulty.client(f"{shard}.mongod")
    with application.start_session() as session:
        session.start_transaction()
        transfer(application, session)
        data = {**data, "failInternalCommands": True} if data else data
        with fail_point(mongod, name, {"times": 2}, **data) as point:
            is_committed = RunningCommit(session).wait()
            assert point.turn_off() == 2
    assert is_committed
    check_settled(faulty, tokens, is_committed=True)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("victims", [each for each in VICTIMS if not each[0].startswith(COORDINATOR)], ids="+".join)
def test_kill_before_the_only_writer_commits(
    faulty: FaultCluster, application: Client, tokens: Tokens, victims: tuple[str, ...]
) -> None:
    """Without a two-phase commit: the reader has committed, and the writer's shard alone knows the outcome."""
    blocked = {"failCommands": ["commitTransaction"], "failInternalCommands": True, "blockConnection": True}
    with application.start_session() as session:
        session.start_transaction()
        assert accounts(application).find_one(LOW, session=session) is not None
        accounts(application).update_one(HIGH, {"$inc": {"balance": 10}}, session=session)
        assert tokens.recovery_token == {"recoveryShardId": UPPER}
        mongod = faulty.client(f"{PARTICIPANT}.mongod")
        with fail_point(mongod, "failCommand", {"times": 1}, **blocked, blockTimeMS=3_000) as point:
            commit = RunningCommit(session)
            point.wait_entered()
            with killed(faulty, *victims):
                if victims == (FIRST_ROUTER,):
                    is_committed = commit.wait()
            is_committed = commit.wait()
    assert not (is_committed and f"{PARTICIPANT}.mongod" in victims)
    end_what_is_left(faulty)
    check_settled(faulty, tokens, is_committed=is_committed, committed=DEPOSITED)


def test_router_that_dies_before_the_commit(faulty: FaultCluster, application: Client, tokens: Tokens) -> None:
    """The other router has never heard of the transaction, but of its shard, by the recovery token."""
    with application.start_session() as session:
        session.start_transaction()
        transfer(application, session)
        assert tokens.recovery_token == {"recoveryShardId": LOWER}
        with killed(faulty, FIRST_ROUTER):
            assert not RunningCommit(session).wait()
    end_what_is_left(faulty)
    check_settled(faulty, tokens, is_committed=False)


def test_router_that_does_not_answer(faulty: FaultCluster, application: Client, tokens: Tokens) -> None:
    """A client that asks the other router in the meantime decides the outcome, or waits for it."""
    with application.start_session() as session:
        session.start_transaction()
        transfer(application, session)
        with faulty.paused(FIRST_ROUTER), raw_client(faulty.router_addresses[1]) as other:
            reply = other.command(recovery(tokens))
        assert reply.get("code") == NO_SUCH_TRANSACTION, reply
        assert reply["errorLabels"] == ["TransientTransactionError"]
        assert not RunningCommit(session).wait()
    end_what_is_left(faulty)
    check_settled(faulty, tokens, is_committed=False)


def end_what_is_left(cluster: FaultCluster) -> None:
    """Abort what a lost router has left open on a shard, a minute before the shard would do it by itself."""
    cluster.router(1).admin.command("killAllSessions", [])


def recovery(tokens: Tokens) -> Document:
    """The commit as a driver sends it to another router."""
    token = {"recoveryToken": tokens.recovery_token}
    return {"commitTransaction": 1, **tokens.fields, "autocommit": False, **token, "writeConcern": {"w": "majority"}}


def lose_transaction(cluster: FaultCluster, tokens: Tokens) -> None:
    """Abort the participant's part of the transaction directly on its mongod."""
    application = credentials_for(cluster.router_addresses[0])
    owner = {"uid": UserName(application.user, application.database).digest} if application.user else {}
    fields = {**tokens.fields, "lsid": {**tokens.fields["lsid"], **owner}}
    with raw_client(cluster.running.address(f"{PARTICIPANT}.mongod")) as mongod:
        reply = mongod.command({"abortTransaction": 1, **fields, "autocommit": False})
    assert reply["ok"], reply


def check_settled(
    cluster: FaultCluster, tokens: Tokens, *, is_committed: bool, committed: dict[str, int] = TRANSFERRED
) -> None:
    """Everybody knows the outcome, also by the token, and the accounts can be used."""
    expected = committed if is_committed else NOTHING_DONE
    wait_decided(cluster)
    for index, address in enumerate(cluster.router_addresses):
        with raw_client(address) as router:
            reply = eventually(partial(outcome, router, tokens), what="an outcome")
        assert bool(reply["ok"]) == is_committed, f"{address}: {reply}"
        found = {each["_id"]: each["balance"] for each in accounts(cluster.router(index)).find()}
        assert found == expected
    client = cluster.router(1)
    with client.start_session() as session:
        session.with_transaction(lambda own: transfer(client, own))
    found = {each["_id"]: each["balance"] for each in accounts(client).find()}
    assert found == {"low": expected["low"] - 10, "high": expected["high"] + 10}


def outcome(router: RawClient, tokens: Tokens) -> Document | None:
    """The reply to a commit by token, once it says what the outcome is."""
    reply = router.command(recovery(tokens))
    is_known = (reply["ok"] and "writeConcernError" not in reply) or reply["code"] == NO_SUCH_TRANSACTION
    return reply if is_known else None
