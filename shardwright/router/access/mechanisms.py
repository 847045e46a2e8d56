"""The authentication mechanisms of clients: SCRAM, and the certificate of the connection (MONGODB-X509).

**SCRAM.** Clients cannot distinguish a wrong password, an unknown user, and a mechanism for which a user has no
credentials. Each receives a salt and fails at the proof, after the same work. Therefore only credentials are read
first, in one small reply of the config servers; privileges are read after the proof.

The salt of an unknown user is derived from the name and the cluster's key. Like a real user's salt, it is therefore
constant across attempts and routers. Without a key, it is derived from the router's private key, and is constant across
routers with the same certificate.

**Certificates** authenticate ``$external`` users and members of the cluster.
"""

import hmac
import secrets
from typing import Final

import trio

from shardwright.daemon.authentication import FailedLogIns, name_in_certificate
from shardwright.daemon.users import SYSTEM, UserName
from shardwright.router.access.authorized_user import Account, Addresses
from shardwright.router.access.login import (
    CONVERSATION_ID,
    Conversation,
    Login,
    LogInAttempt,
    LogInCounts,
    authentication_failed,
)
from shardwright.router.access.user_cache import UserCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.scram import (
    MECHANISMS,
    ClientFirst,
    Credentials,
    Mechanism,
    ScramError,
    ServerConversation,
    first_reply,
)
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import WITH_CERTIFICATE, ClusterAuth

logger = get_logger("router.access")

_NONCE_BYTES: Final = 24
_NAME_CHARACTERS_SHOWN: Final = 128
_EXTERNAL: Final = "$external"


class ScramLogin:
    """Runs the SCRAM conversations of all connections."""

    def __init__(self, users: UserCache, auth: ClusterAuth, counts: LogInCounts) -> None:
        self._users = users
        self._auth = auth
        self._counts = counts
        self._failed = FailedLogIns()
        self._system_salt = secrets.token_bytes(Mechanism.SHA_256.salt_bytes)
        self._system_credentials: list[Credentials] = []

    async def start(
        self,
        login: Login,
        db: str,
        mechanism_name: str,
        payload: bytes,
        *,
        skips_empty: bool,
        is_speculative: bool = False,
        known: Account | None = None,
    ) -> bytes:
        """Begin a conversation; return the payload of the reply.

        Args:
            skips_empty: whether the client need not confirm the end.
            is_speculative: whether the mechanism is a guess; it fails at once if the user has no credentials for it.
            known: an account that was already read within the same request, of that user or another.

        Raises:
            CommandError: MechanismUnavailable, AuthenticationFailed, or the config servers cannot be read.
        """
        login.conversation = None
        attempt = self._counts.begin(mechanism_name, is_speculative=is_speculative)
        mechanism = _checked_mechanism(mechanism_name, db)
        try:
            first = ClientFirst.parse(payload)
        except ScramError as error:
            raise authentication_failed() from error
        name = UserName(first.user, db)
        login.attempt = name, mechanism_name
        if name.is_internal:
            attempt.is_of_cluster()
        account = known if known is not None and known.name == name else await self.account_of(name)
        if is_speculative and mechanism not in account.credentials:
            raise authentication_failed()
        of_nobody = self._credentials_of_nobody(name, mechanism)
        credentials = account.credentials.get(mechanism, [of_nobody])
        nonce = secrets.token_urlsafe(_NONCE_BYTES).encode()
        reply = first_reply(first, nonce, credentials[0].salt, credentials[0].iterations)
        steps = ServerConversation(first, credentials, reply)
        login.conversation = Conversation(name, account.user_id, steps, skips_empty, attempt)
        return reply.message

    async def go_on(
        self, login: Login, conversation_id: int, payload: bytes, addresses: Addresses
    ) -> tuple[bytes, bool]:
        """Continue a conversation; return the payload of the reply, and whether the conversation has ended.

        Args:
            addresses: for `Restrictions.are_met`.

        Raises:
            CommandError: AuthenticationFailed; ProtocolError, there is no such conversation; 5626701 or 5626702.
        """
        conversation = login.take_conversation()
        if conversation_id != CONVERSATION_ID:
            raise CommandError(ErrorCode.ProtocolError, "sasl: Mismatched conversation id")
        if conversation.steps is None:
            if payload:
                raise authentication_failed()
            _complete(login, conversation, addresses)
            return b"", True
        user, address = conversation.user, addresses[0]
        if not user.is_internal:
            await trio.sleep(self._failed.delay_seconds(user, address))
        try:
            proof = conversation.steps.finish(payload)
        except ScramError as error:
            self._failed.note(user, address)
            log_failure(user, str(error))
            raise authentication_failed() from error
        self._failed.forget(user, address)
        if not user.is_internal:
            await self._check_restrictions(user, conversation.user_id, addresses)
        if not conversation.skips_empty_exchange:
            conversation.steps = None
            login.conversation = conversation
            return proof, False
        _complete(login, conversation, addresses)
        return proof, True

    async def account_of(self, name: UserName) -> Account:
        """Return the SCRAM account of a user, of the cluster itself or of an unknown name."""
        if name == SYSTEM:
            keys = {Mechanism.SHA_256: await self._credentials_of_system()} if self._auth.accepts_key else {}
            return Account(name, exists=True, user_id=b"", credentials=keys)
        if name.db == _EXTERNAL:
            return Account(name, exists=True, user_id=b"", credentials={})
        return await self._users.account_of(name)

    async def _credentials_of_system(self) -> list[Credentials]:
        """Return the credentials of each key. One salt per process is used, so that peers derive their keys once."""
        if not self._system_credentials:
            mechanism = Mechanism.SHA_256
            self._system_credentials = [
                await trio.to_thread.run_sync(
                    Credentials.of_password, mechanism, key, self._system_salt, mechanism.iterations
                )
                for key in self._auth.keys.keys
            ]
        return self._system_credentials

    def _credentials_of_nobody(self, name: UserName, mechanism: Mechanism) -> Credentials:
        """Make credentials that no proof matches, so that verification takes as long as with real ones."""
        text = f"{mechanism.value}\0{name.db}\0{name.user}".encode()
        salt = hmac.digest(self._auth.secret, text, "sha256")[: mechanism.salt_bytes]
        unknown = (secrets.token_bytes(mechanism.key_bytes) for _ in range(2))
        return Credentials(mechanism, salt, mechanism.iterations, *unknown)

    async def _check_restrictions(self, name: UserName, user_id: bytes, addresses: Addresses) -> None:
        """Check that a user who has proven the password still exists and may connect from these addresses."""
        user = await self._users.read(name)
        if user is None or user.user_id != user_id:
            log_failure(name, "the user was dropped meanwhile")
        elif not user.restrictions.are_met(addresses):
            log_failure(name, "restrictions are not met")
        else:
            return
        raise authentication_failed()


def _complete(login: Login, conversation: Conversation, addresses: Addresses) -> None:
    login.complete(conversation.user, conversation.user_id, addresses)
    conversation.attempt.succeed()


def log_failure(name: UserName, reason: str) -> None:
    """Log why a log-in failed. The reason must not reach the client."""
    logger.info("Authentication failed", user=name.user[:_NAME_CHARACTERS_SHOWN], db=name.db, error=reason)


def _checked_mechanism(name: str, db: str) -> Mechanism:
    """Return the mechanism with a name; refuse it if it is unknown or not for users of the database."""
    mechanism = MECHANISMS.get(name)
    if name == WITH_CERTIFICATE or (mechanism is not None and db == _EXTERNAL):
        raise CommandError(
            ErrorCode.MechanismUnavailable, f"Unsupported mechanism '{name}' on authentication database '{db}'"
        )
    if mechanism is None:
        raise CommandError(
            ErrorCode.MechanismUnavailable, f"Received authentication for mechanism {name} which is not enabled"
        )
    return mechanism


async def log_in_with_certificate(
    users: UserCache,
    cluster_auth: ClusterAuth,
    client: ClientConnection,
    db: str,
    user: str | None,
    addresses: Addresses,
    attempt: LogInAttempt,
) -> UserName:
    """Log a client in with the certificate of its connection; return the name in the certificate.

    Args:
        db: the user's database according to the client.
        user: the user's name according to the client, if given.
        addresses: for `Restrictions.are_met`.

    Raises:
        CommandError: from `name_in_certificate`; UserNotFound; AuthenticationFailed, restrictions are not met.
    """
    name, becomes = name_in_certificate(cluster_auth, client, db, user)
    user_id = b""
    if becomes.is_internal:
        attempt.is_of_cluster()
    else:
        found = await users.read(name)
        if found is None:
            log_failure(name, "there is no such user")
            raise CommandError(ErrorCode.UserNotFound, f'Could not find user "{name.user}" for db "{name.db}"')
        if not found.restrictions.are_met(addresses):
            log_failure(name, "restrictions are not met")
            raise authentication_failed()
        user_id = found.user_id
    client.login.complete(becomes, user_id, addresses)
    attempt.succeed()
    return name
