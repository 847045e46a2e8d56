"""Mutual authentication of the processes of a cluster: with a key, or with certificates.

With a certificate a process logs in by MONGODB-X509. Both sides check the subject of the other's certificate, which
must belong to a member (`ProcessTls.is_member`). An ordinary certificate of the same authority does not identify a
server either.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import trio
from bson.binary import Binary

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.scram import (
    SYSTEM_DATABASE,
    SYSTEM_MECHANISM,
    SYSTEM_USER,
    ClientConversation,
    ScramError,
    ScramKeys,
    ServerFirst,
)
from shardwright.wire.tls import ProcessTls, Subject, TlsConfigurationError, TlsMode

_ILLEGAL_TRANSITION: Final = 5579202


class ClusterAuthMode(Enum):
    """Proofs that a process sends and accepts, in the order in which a cluster changes them."""

    KEY_FILE = "keyFile"
    SEND_KEY_FILE = "sendKeyFile"
    SEND_X509 = "sendX509"
    X509 = "x509"

    @property
    def sends_certificate(self) -> bool:
        """Whether a process logs in with its certificate, rather than with a key."""
        return self in (ClusterAuthMode.SEND_X509, ClusterAuthMode.X509)

    @property
    def accepts_certificate(self) -> bool:
        """Whether a member's certificate authenticates a client."""
        return self is not ClusterAuthMode.KEY_FILE

    @property
    def accepts_key(self) -> bool:
        """Whether a key authenticates a client."""
        return self is not ClusterAuthMode.X509

    def __str__(self) -> str:
        return self.value


_MODES: Final = tuple(ClusterAuthMode)
UNDEFINED: Final = "undefined"
"""MongoDB's name for the mode of a process without access control."""


def mode_named(name: object) -> ClusterAuthMode:
    """Parse the name of a mode; raise BadValue if there is no such mode."""
    for mode in _MODES:
        if mode.value == name:
            return mode
    raise CommandError(ErrorCode.BadValue, f"Invalid clusterAuthMode '{name}'")


def check_transition(old: ClusterAuthMode | None, new: ClusterAuthMode) -> None:
    """Raise 5579202 for any transition but the step to the next mode.

    At no time does one process then send a proof that another does not accept.
    """
    if old is None or _MODES.index(new) != _MODES.index(old) + 1:
        raise CommandError(
            _ILLEGAL_TRANSITION, f"Illegal state transition for clusterAuthMode from '{old or UNDEFINED}' to '{new}'"
        )


_NONCE_BYTES: Final = 24
_DERIVED_MAX: Final = 1_000
"""Number of cached derivations. Servers keep their salts while they run, so each needs only one."""

RunCommand: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class ClusterKeys:
    """The keys of a process in the order of use; none without access control."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.keys = tuple(key.encode() for key in keys)
        self._derived: dict[tuple[bytes, bytes, int], ScramKeys] = {}

    async def log_in(self, run: RunCommand) -> None:
        """Log in on a connection, if there are keys. The server's messages are not trusted before it is verified.

        ``run`` sends a command on the connection, given its database, and returns the reply.

        Raises:
            CommandError: AuthenticationFailed, the server refuses all keys, or does not know the one that it accepts.
            BackendError: the connection broke.
        """
        for number, key in enumerate(self.keys, start=1):
            try:
                await self._converse(run, key)
            except CommandError as error:
                if error.code != ErrorCode.AuthenticationFailed or number == len(self.keys):
                    raise
            except ScramError as error:
                raise CommandError(ErrorCode.AuthenticationFailed, f"cannot authenticate: {error}") from error
            else:
                return

    async def _converse(self, run: RunCommand, key: bytes) -> None:
        conversation = ClientConversation(SYSTEM_USER, secrets.token_urlsafe(_NONCE_BYTES).encode())
        start = {
            "saslStart": 1,
            "mechanism": SYSTEM_MECHANISM.value,
            "payload": Binary(conversation.first),
            "options": {"skipEmptyExchange": True},
        }
        answer = await run(SYSTEM_DATABASE, start)
        reply = conversation.read(_payload(answer))
        proof = conversation.prove(reply, await self._keys_for(key, reply))
        more = {"saslContinue": 1, "conversationId": answer.get("conversationId"), "payload": Binary(proof)}
        answer = await run(SYSTEM_DATABASE, more)
        conversation.verify(_payload(answer))
        if answer.get("done") is not True:
            raise ScramError("the server does not end the conversation")

    async def _keys_for(self, key: bytes, reply: ServerFirst) -> ScramKeys:
        wanted = (key, reply.salt, reply.iterations)
        derived = self._derived.get(wanted)
        if derived is None:
            derived = await trio.to_thread.run_sync(ScramKeys.derive, SYSTEM_MECHANISM, *wanted)
            if len(self._derived) >= _DERIVED_MAX:
                self._derived.clear()
            self._derived[wanted] = derived
        return derived


def _payload(answer: Mapping[str, Any]) -> bytes:
    payload = answer.get("payload")
    if not isinstance(payload, bytes):
        raise ScramError("the server's payload is not binary")
    return payload


EXTERNAL_DATABASE: Final = "$external"
WITH_CERTIFICATE: Final = "MONGODB-X509"


class ClusterAuth:
    """Cluster authentication of a process. It is on if a mode or keys are given; without a mode, the keys imply it.

    Raises TlsConfigurationError if the mode needs other options, with a mongod's text where a mongod refuses it too.

    Attributes:
        mode: the proofs sent and accepted; None without access control.
        secret: a secret of the cluster: the key, or without one a digest of the private key of this process.
    """

    def __init__(self, tls: ProcessTls, mode: ClusterAuthMode | None = None, keys: Sequence[str] = ()) -> None:
        self._tls = tls
        if mode is not None:
            _check_at_start(tls, mode, has_keys=bool(keys))
        self.keys = ClusterKeys(keys)
        self.mode = mode or (ClusterAuthMode.KEY_FILE if keys else None)
        self.secret = b""
        if keys:
            self.secret = self.keys.keys[0]
        elif mode is not None:
            assert tls.settings.certificate_key_file is not None, "checked above"
            self.secret = hashlib.sha256(tls.settings.certificate_key_file.read_bytes()).digest()

    @property
    def is_on(self) -> bool:
        """Whether there is access control."""
        return self.mode is not None

    @property
    def mode_name(self) -> str:
        """The mode as ``getParameter`` shows it."""
        return UNDEFINED if self.mode is None else self.mode.value

    @property
    def sends_certificate(self) -> bool:
        """Whether this process logs in with its certificate."""
        return self.mode is not None and self.mode.sends_certificate

    @property
    def accepts_certificate(self) -> bool:
        """Whether a member's certificate authenticates a client."""
        return self.mode is not None and self.mode.accepts_certificate

    @property
    def accepts_key(self) -> bool:
        """Whether a key authenticates a client."""
        return self.mode is not None and self.mode.accepts_key

    def is_member(self, subject: Subject | None) -> bool:
        """Whether a verified certificate belongs to a member of the cluster."""
        return self._tls.is_member(subject)

    def change_mode(self, name: object) -> None:
        """Change to the next mode, for future log-ins.

        Raises BadValue or 5579202 if it is not the next one, or this process has no certificate of a member.
        """
        self.check_ability(name)
        mode = mode_named(name)
        check_transition(self.mode, mode)
        self.mode = mode

    def check_ability(self, name: object) -> None:
        """Raise BadValue for a mode for which this process lacks TLS or a certificate."""
        mode_named(name)
        if self._tls.dialing is None:
            raise CommandError(
                ErrorCode.BadValue,
                "Illegal state transition for clusterAuthMode, need to enable SSL for outgoing connections",
            )
        reason = _why_no_member(self._tls) if self.is_on else None
        if reason is not None:
            raise CommandError(ErrorCode.BadValue, reason)

    def adopt_mode(self, name: object) -> None:
        """Follow a mode change of this process's mongod; without access control, do nothing."""
        if self.is_on:
            self.mode = mode_named(name)

    async def log_in(self, run: RunCommand, server: Subject | None) -> None:
        """Log in on a connection, if there is access control; the server has to belong to the cluster too.

        ``run`` is as in `ClusterKeys.log_in`. ``server`` is the name in the server's verified certificate; None without
        TLS.

        Raises:
            CommandError: AuthenticationFailed, one of the two does not recognise the other.
            BackendError: the connection broke.
        """
        if not self.sends_certificate:
            await self.keys.log_in(run)
            return
        if not self.is_member(server):
            raise CommandError(
                ErrorCode.AuthenticationFailed, "the server's certificate does not belong to a member of the cluster"
            )
        await run(EXTERNAL_DATABASE, {"authenticate": 1, "mechanism": WITH_CERTIFICATE})


def _check_at_start(tls: ProcessTls, mode: ClusterAuthMode, *, has_keys: bool) -> None:
    if mode.accepts_key and not has_keys:
        raise TlsConfigurationError("Unable to acquire security key[s]")
    if not mode.accepts_certificate:
        return
    if tls.settings.mode is TlsMode.DISABLED:
        raise TlsConfigurationError("need to enable TLS via the tlsMode flag")
    if mode.sends_certificate and not tls.settings.mode.dials_tls:
        raise TlsConfigurationError("cannot have x.509 cluster authentication in allowTLS mode")
    reason = _why_no_member(tls)
    if reason is not None:
        raise TlsConfigurationError(reason)


def _why_no_member(tls: ProcessTls) -> str | None:
    """Explain why members cannot recognise each other by their certificates; None if they can."""
    if tls.settings.allows_invalid_certificates or tls.settings.ca_file is None:
        return "x.509 cluster authentication needs certificates that are checked"
    if not tls.organization:
        return "Cluster member DN's must contain at least one O, OU, or DC component"
    return None
