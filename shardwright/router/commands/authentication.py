"""Logging in and out: ``saslStart``, ``saslContinue``, ``authenticate``, ``logout``; ``connectionStatus``."""

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bson import Binary

from shardwright.daemon.authentication import check_mechanism
from shardwright.router.access.authorized_user import NO_ADDRESSES, Account, Addresses
from shardwright.router.access.login import CONVERSATION_ID
from shardwright.router.access.mechanisms import log_in_with_certificate
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.rawbson import find, is_string, type_name
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import WITH_CERTIFICATE

_FAILURES: Final = frozenset({ErrorCode.AuthenticationFailed, ErrorCode.MechanismUnavailable, ErrorCode.UserNotFound})
"""Errors that count as failed authentications. Unreachable config servers do not."""


async def sasl_start(operation: Operation) -> Reply:
    """Begins a log-in."""
    with _counting_failures(operation.client):
        return await start_conversation(operation, Arguments.of(operation.request), operation.request.db)


async def start_conversation(
    operation: Operation, arguments: Arguments, db: str, *, is_speculative: bool = False, known: Account | None = None
) -> dict[str, Any]:
    """Execute a ``saslStart``, possibly one inside a hello.

    Args:
        known: see `ScramLogin.start`.

    Raises:
        CommandError: from `ScramLogin.start`, or an argument is wrong.
    """
    scram, login = operation.context.log_ins.scram, operation.client.login
    mechanism = arguments.string(b"mechanism")
    payload, is_text = _payload(arguments)
    skips_empty = arguments.has(b"options") and arguments.nested(b"options").boolean(b"skipEmptyExchange")
    answer = await scram.start(
        login, db, mechanism, payload, skips_empty=skips_empty, is_speculative=is_speculative, known=known
    )
    return _reply(answer, done=False, is_text=is_text)


async def sasl_continue(operation: Operation) -> Reply:
    """Continues a log-in."""
    scram, login = operation.context.log_ins.scram, operation.client.login
    arguments = Arguments.of(operation.request)
    conversation_id = arguments.maybe_integer(b"conversationId", minimum=None)
    if conversation_id is None:
        raise missing_field("saslContinue.conversationId")
    payload, is_text = _payload(arguments)
    with _counting_failures(operation.client):
        answer, done = await scram.go_on(login, conversation_id, payload, addresses_of(operation.client))
    return _reply(answer, done=done, is_text=is_text)


async def authenticate(operation: Operation) -> Reply:
    """Logs in with the certificate of the connection."""
    with _counting_failures(operation.client):
        return await authenticate_by_certificate(operation, Arguments.of(operation.request), operation.request.db)


async def authenticate_by_certificate(
    operation: Operation, arguments: Arguments, db: str, *, is_speculative: bool = False
) -> dict[str, Any]:
    """Execute an ``authenticate``, possibly one inside a hello.

    Raises:
        CommandError: from `log_in_with_certificate`, or the mechanism is another one.
    """
    check_mechanism(arguments.string(b"mechanism"))
    user = arguments.maybe_string(b"user")
    log_ins, client = operation.context.log_ins, operation.client
    attempt = log_ins.counts.begin(WITH_CERTIFICATE, is_speculative=is_speculative)
    cluster_auth = operation.context.transport.cluster_auth
    name = await log_in_with_certificate(log_ins.users, cluster_auth, client, db, user, addresses_of(client), attempt)
    return {"dbname": name.db, "user": name.user}


async def logout(operation: Operation) -> Reply:
    """Logs the user of the database out."""
    login = operation.client.login
    if login.user is not None and login.user.db == operation.request.db:
        login.end()
    return {}


async def connection_status(operation: Operation) -> Reply:
    """The users authenticated on this connection."""
    shows_privileges = Arguments.of(operation.request).boolean(b"showPrivileges")
    user = await operation.context.log_ins.user_of(operation.client.login)
    status: dict[str, Any] = {
        "authenticatedUsers": [] if user is None else [user.name.to_document()],
        "authenticatedUserRoles": [] if user is None else list(user.role_documents),
    }
    if shows_privileges:
        status["authenticatedUserPrivileges"] = [] if user is None else list(user.privilege_documents)
    return {"authInfo": status}


def addresses_of(client: ClientConnection) -> Addresses:
    """Return the client's and the server's address of a connection."""
    own = client.stream.socket.getsockname()
    if not isinstance(own, tuple):
        return NO_ADDRESSES
    return client.peer.rpartition(":")[0], own[0]


@contextmanager
def _counting_failures(client: ClientConnection) -> Iterator[None]:
    """Count log-in steps that fail because of the client's input.

    Speculative attempts in a hello are not counted: a driver that guessed the wrong mechanism must be able to continue.
    """
    try:
        yield
    except CommandError as error:
        if error.code in _FAILURES:
            client.log_in_failed()
        raise


def _payload(arguments: Arguments) -> tuple[bytes, bool]:
    """Return the client's message, and whether it was sent as base64 text."""
    value = None if arguments.is_null(b"payload") else arguments.required_value(b"payload")
    if isinstance(value, bytes):
        return value, False
    if not is_string(value):
        span = find(arguments.document, b"payload")
        shown = "missing" if span is None else type_name(span[0])
        raise CommandError(ErrorCode.BadValue, f"Invalid SASLPayload type. Expected Base64 or BinData, got: {shown}")
    try:
        return b64decode(value, validate=True), True
    except (Error, ValueError):
        raise CommandError(10270, "Failed decoding SASL payload: invalid base64") from None


def _reply(payload: bytes, *, done: bool, is_text: bool) -> dict[str, Any]:
    shown = b64encode(payload).decode() if is_text else Binary(payload)
    return {"conversationId": CONVERSATION_ID, "done": done, "payload": shown}
