"""The identity of a sidecar's client after each step of a log-in, whatever the mongod accepts; without a mongod."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import bson
import pytest
import trio

from shardwright.daemon.audit_log import AuditLog
from shardwright.daemon.logs import DaemonLogs
from shardwright.daemon.sidecar.access import SidecarAccess
from shardwright.daemon.sidecar.handler import SidecarHandler
from shardwright.daemon.users import SYSTEM, UserName
from shardwright.sharding.bson_text import command_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg, reply_document
from shardwright.wire.request import Request
from shardwright.wire.tls import ProcessTls, Subject
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.cluster_auth import ClusterAuth, ClusterAuthMode
from tests.transports import new_transport

ANN: Final = UserName("ann", "admin")
AUTHENTICATE: Final = {"authenticate": 1, "mechanism": "MONGODB-X509", "$db": "$external"}
START: Final = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=ann,r=nonce", "$db": "admin"}
PROOF: Final = {"saslContinue": 1, "conversationId": 1, "payload": b"proof", "$db": "admin"}
MEMBER: Final[Subject] = ((("organizationName", "shop"),), (("commonName", "router"),))
CLIENT: Final[Subject] = ((("organizationName", "clients"),), (("commonName", "clerk"),))


class FakeUpstream:
    """A client's connection to a mongod that accepts every proof, and all other commands.

    Attributes:
        proves: the user that a proof logs in; None if the proof is wrong.
        logged_in: the user that is logged in there.
        passed_on: the fields of each command of the client that has reached the mongod.
        refuses: the error of the mongod for commands of the daemon.
        refuses_log_in: the error that ends the daemon's own log-in after the mongod has accepted it.
        fails: the errors of the client's commands, by name.
    """

    def __init__(self, client: "FakeClient", proves: UserName | None) -> None:
        self.proves = proves
        self.passed_on: list[list[bytes]] = []
        self.refuses: CommandError | None = None
        self.refuses_log_in: CommandError | None = None
        self.user: UserName | None = None
        self.attempt: UserName | None = None
        self.roles: Sequence[Mapping[str, str]] = ()
        self.logged_in: UserName | None = None
        self.fails: dict[str, CommandError | BackendError] = {}
        self._client = client

    async def forward(self, frame: bytes, flags: int) -> bytes | None:
        request = Request(OpMsg(frame))
        self.passed_on.append(list(request.fields))
        is_wrong = request.name == "saslContinue" and self.proves is None
        if request.name == "saslContinue":
            self.logged_in = self.proves or self.logged_in
        elif request.name == "logout":
            self.logged_in = None
        failure = self.fails.get(request.name)
        if isinstance(failure, BackendError):
            raise failure
        if flags & MORE_TO_COME:
            return None
        reply: dict[str, Any] = {"ok": 1.0, "done": request.name == "saslContinue"}
        if is_wrong:
            reply = {"ok": 0.0, "code": 18, "errmsg": "Authentication failed."}
        elif failure is not None:
            reply = failure.reply()
        return reply_document(request.message.request_id, reply)

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        users = [] if self.logged_in is None else [self.logged_in.to_document()]
        roles = [{"role": "read", "db": each["db"]} for each in users]
        return {"authInfo": {"authenticatedUsers": users, "authenticatedUserRoles": roles}}

    async def log_in(self) -> None:
        self.logged_in = SYSTEM
        if self.refuses_log_in is not None:
            raise self.refuses_log_in

    def note_user(self, user: UserName | None, roles: Sequence[Mapping[str, str]]) -> None:
        self.user, self.roles = user, roles

    def break_off(self) -> None:
        self._client.is_finished = True

    def close(self) -> None:
        pass


class FakeClient:
    """A client, with the certificate of a member unless it gets another."""

    def __init__(self, proves: UserName | None = None) -> None:
        self.certificate_subject: Subject = MEMBER
        self.id = 7
        self.peer_address = ("192.0.2.1", 5)
        self.stream = SimpleNamespace(socket=SimpleNamespace(getsockname=lambda: ("192.0.2.2", 6)))
        self.is_finished = self.is_disconnected = False
        self.failures = 0
        self.begun: None = None
        self.state = FakeUpstream(self, proves)

    def log_in_failed(self) -> None:
        self.failures += 1


class PassingOn(SidecarHandler):
    """A daemon that has no commands of its own."""

    async def dispatch(self, client: Any, upstream: Any, request: Request) -> bytes | None:  # noqa: ANN401 - fakes
        reply: bytes | None = await upstream.forward(request.message.frame, request.message.flags)
        return reply

    def namespace_of(self, request: Request) -> str:
        return request.db


def in_mode(mode: ClusterAuthMode) -> ClusterAuth:
    """The cluster authentication of a daemon whose mode has changed from keys."""
    tls = ProcessTls()
    tls.organization = (("O", "shop"),)
    cluster_auth = ClusterAuth(tls, keys=("a" * 60,))
    cluster_auth.mode = mode
    return cluster_auth


def answers(
    client: FakeClient,
    *commands: Mapping[str, Any],
    flags: int = 0,
    audit: AuditLog | None = None,
    mode: ClusterAuthMode = ClusterAuthMode.X509,
) -> list[dict[str, Any] | None]:
    """The replies to commands of a client, one after the other; None if the mongod is gone. Then the client leaves."""
    metrics = SimpleNamespace(operations=SimpleNamespace(observe=lambda *_: None))
    cluster_auth = in_mode(mode)
    access = SidecarAccess(cluster_auth, (), lambda _: False, command_text, lambda _: False)
    sidecar = SimpleNamespace(
        transport=new_transport(cluster_auth=cluster_auth),
        open_upstream=lambda _: client.state,
        note_reply=lambda _: None,
    )
    handler = PassingOn(
        cast("Any", sidecar), cast("Any", metrics), 1e9, get_logger("test"), access, DaemonLogs(), audit
    )

    async def main() -> list[dict[str, Any] | None]:
        replies: list[dict[str, Any] | None] = []
        handler.connection_opened(cast("Any", client))
        for command in commands:
            request = Request(OpMsg(op_msg(bson.encode(command), request_id=1, flags=flags)))
            try:
                reply = await handler.handle(cast("Any", client), request)
            except CommandError as error:
                replies.append({"ok": 0.0, "code": error.code})
            else:
                replies.append(None if reply is None else decode_reply(reply))
        handler.connection_closed(cast("Any", client))
        return replies

    return trio.run(main)


def test_a_member_logs_in_by_its_certificate() -> None:
    client = FakeClient()
    assert answers(client, AUTHENTICATE) == [{"dbname": "$external", "user": "CN=router,O=shop", "ok": 1.0}]
    assert (client.state.user, client.state.passed_on, client.is_finished) == (SYSTEM, [], False)


@pytest.mark.parametrize("mode", [ClusterAuthMode.KEY_FILE, ClusterAuthMode.X509])
def test_a_certificate_is_not_enough(mode: ClusterAuthMode) -> None:
    """A member's certificate is not enough in the mode of keys, and a client's in no mode."""
    client = FakeClient()
    if mode is ClusterAuthMode.X509:
        client.certificate_subject = CLIENT
    guess = {"hello": 1, "speculativeAuthenticate": AUTHENTICATE, "$db": "admin"}
    assert answers(client, AUTHENTICATE, guess, mode=mode) == [{"ok": 0.0, "code": 18}, {"ok": 1.0, "done": False}]
    assert (client.state.user, client.state.passed_on, client.failures) == (None, [[b"hello", b"$db"]], 1)


@pytest.mark.parametrize(
    ("mode", "proves", "code"),
    [
        (ClusterAuthMode.X509, SYSTEM, 18),
        (ClusterAuthMode.SEND_X509, SYSTEM, None),
        (ClusterAuthMode.X509, ANN, None),
    ],
)
def test_a_key_that_the_mongod_still_takes_opens_nothing_in_mode_x509(
    mode: ClusterAuthMode, proves: UserName, code: int | None
) -> None:
    client = FakeClient(proves)
    replies = answers(client, START, PROOF, mode=mode)
    assert [reply and reply.get("code") for reply in replies] == [None, code]
    assert (client.state.user, client.is_finished) == ((proves, False) if code is None else (None, True))


def test_who_is_a_member_stays_one_in_mode_x509() -> None:
    """Existing connections continue when the mode changes."""
    client = FakeClient(SYSTEM)
    client.state.user = client.state.logged_in = SYSTEM
    assert answers(client, START, PROOF) == [{"ok": 1.0, "done": False}, {"ok": 1.0, "done": True}]
    assert (client.state.user, client.is_finished) == (SYSTEM, False)


def test_a_log_in_that_only_the_mongod_holds_to_be_complete_is_none() -> None:
    client = FakeClient()
    client.state.refuses_log_in = CommandError(ErrorCode.AuthenticationFailed, "the server does not know the key")
    assert answers(client, AUTHENTICATE) == [{"ok": 0.0, "code": 18}]
    assert (client.state.user, client.is_finished) == (None, True)


@pytest.mark.parametrize("commands", [[AUTHENTICATE], [START]])
def test_nobody_acts_on_a_connection_whose_user_is_not_known(commands: list[dict[str, Any]]) -> None:
    client = FakeClient(ANN)
    client.state.refuses = CommandError(ErrorCode.InterruptedAtShutdown, "interrupted at shutdown")
    replies = answers(client, *commands)
    assert [reply and reply.get("code") for reply in replies] == [ErrorCode.InterruptedAtShutdown] * len(commands)
    assert (client.state.user, client.is_finished) == (None, True)


def test_a_guess_that_wants_no_answer_is_a_failure() -> None:
    client = FakeClient()
    assert answers(client, START, PROOF, flags=MORE_TO_COME, mode=ClusterAuthMode.KEY_FILE) == [None, None]
    assert (client.failures, client.state.attempt) == (2, None)
