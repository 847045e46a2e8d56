"""Log-ins by SCRAM at the router, with credentials from the config servers.

Nothing tells apart a wrong password, an unknown user and a mechanism for which a user has no credentials: each gets a
salt and fails at the proof. The salt of somebody unknown is made from the name and the cluster's key, so that it is the
same each time and on each router, as that of a user is. Without a key, the router's own private key has to do, and the
salt is the same on routers with the same certificate.
"""

import hmac
import secrets
from typing import Final

import trio

from shardwright.daemon.failed_log_ins import FailedLogIns
from shardwright.daemon.user_names import SYSTEM, UserName
from shardwright.router.access.login import CONVERSATION_ID, Conversation, Login, authentication_failed
from shardwright.router.access.user_cache import UserCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.scram.keys import MECHANISMS, Credentials, Mechanism
from shardwright.wire.scram.messages import ClientFirst, ScramError
from shardwright.wire.scram.server import ServerConversation, first_reply
from shardwright.wire.transport.cluster_auth import WITH_CERTIFICATE, ClusterAuth

logger = get_logger("router.access")

_NONCE_BYTES: Final = 24
_NAME_CHARACTERS_SHOWN: Final = 128
_EXTERNAL: Final = "$external"


class ScramLogin:
    """Holds the conversations of all connections.

    Args:
        users: the users.
        auth: how parts of the cluster log in.
    """

    def __init__(self, users: UserCache, auth: ClusterAuth) -> None:
        self._users = users
        self._auth = auth
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
    ) -> bytes:
        """Begin a conversation; returns the payload of the answer.

        Args:
            login: of the connection.
            db: of the user.
            mechanism_name: which the client has chosen.
            payload: the client's first message.
            skips_empty: whether the client need not confirm the end.
            is_speculative: the mechanism is a guess of the client, who must learn if the user has another one.

        Raises:
            CommandError: MechanismUnavailable, AuthenticationFailed, or the config servers cannot be read.
        """
        login.conversation = None
        mechanism = _checked_mechanism(mechanism_name, db)
        try:
            first = ClientFirst.parse(payload)
        except ScramError as error:
            raise authentication_failed() from error
        name = UserName(first.user, db)
        login.attempt = name, mechanism_name
        if is_speculative and mechanism.value not in (await self.mechanisms_of(name) or ()):
            raise authentication_failed()
        user_id, credentials = await self._credentials_of(name, mechanism)
        nonce = secrets.token_urlsafe(_NONCE_BYTES).encode()
        reply = first_reply(first, nonce, credentials[0].salt, credentials[0].iterations)
        login.conversation = Conversation(name, user_id, ServerConversation(first, credentials, reply), skips_empty)
        return reply.message

    async def go_on(
        self, login: Login, conversation_id: int, payload: bytes, addresses: tuple[str | None, str | None]
    ) -> tuple[bytes, bool]:
        """Continue a conversation; returns the payload of the answer, and whether it has ended.

        Args:
            login: of the connection.
            conversation_id: which the client believes to continue.
            payload: the client's message.
            addresses: of the client and the server, for `Restrictions.are_met`.

        Raises:
            CommandError: AuthenticationFailed; ProtocolError, there is no such conversation; 5626701 or 5626702.
        """
        conversation = login.take_conversation()
        if conversation_id != CONVERSATION_ID:
            raise CommandError(ErrorCode.ProtocolError, "sasl: Mismatched conversation id")
        if conversation.steps is None:
            if payload:
                raise authentication_failed()
            login.complete(conversation.user, conversation.user_id)
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
        await self._check_restrictions(user, addresses)
        if not conversation.skips_empty_exchange:
            conversation.steps = None
            login.conversation = conversation
            return proof, False
        login.complete(conversation.user, conversation.user_id)
        return proof, True

    async def mechanisms_of(self, name: UserName) -> list[str] | None:
        """The mechanisms with which a user may log in; None if there is no such user.

        Raises:
            CommandError: the config servers cannot be read.
        """
        if name == SYSTEM:
            return [Mechanism.SHA_256.value] if self._auth.accepts_key else []
        if name.db == _EXTERNAL:
            return []
        user = await self._users.find(name)
        if user is None:
            return None
        return [mechanism.value for mechanism in Mechanism if mechanism in user.credentials]

    async def _credentials_of(self, name: UserName, mechanism: Mechanism) -> tuple[bytes, list[Credentials]]:
        """The id of a user, and with what proofs are verified."""
        if name == SYSTEM:
            if mechanism is Mechanism.SHA_256 and self._auth.accepts_key:
                return b"", await self._credentials_of_system()
            return b"", [self._credentials_of_nobody(name, mechanism)]
        user = await self._users.read(name)  # a changed password counts at once
        stored = None if user is None else user.credentials.get(mechanism)
        if user is None or stored is None:
            return b"", [self._credentials_of_nobody(name, mechanism)]
        return user.user_id, [stored]

    async def _credentials_of_system(self) -> list[Credentials]:
        """Those of each key, with the salt of this process, so that peers derive their keys once."""
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
        """Credentials for which nobody can make a proof, so that verifying one takes as long as with others."""
        text = f"{mechanism.value}\0{name.db}\0{name.user}".encode()
        salt = hmac.digest(self._auth.secret, text, "sha256")[: mechanism.salt_bytes]
        unknown = (secrets.token_bytes(mechanism.key_bytes) for _ in range(2))
        return Credentials(mechanism, salt, mechanism.iterations, *unknown)

    async def _check_restrictions(self, name: UserName, addresses: tuple[str | None, str | None]) -> None:
        user = await self._users.find(name)
        if user is None or not user.restrictions.are_met(*addresses):
            log_failure(name, "restrictions are not met")
            raise authentication_failed()


def log_failure(name: UserName, reason: str) -> None:
    """Say in the log why a log-in failed; the client must not learn it."""
    logger.info("Authentication failed", user=name.user[:_NAME_CHARACTERS_SHOWN], db=name.db, error=reason)


def _checked_mechanism(name: str, db: str) -> Mechanism:
    """The mechanism of a name.

    Raises:
        CommandError: MechanismUnavailable, there is none of that name, or not for users of that database.
    """
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
