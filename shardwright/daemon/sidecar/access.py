"""Authorization of requests to a sidecar whose mongod has access control.

Clients log in at the mongod, through the sidecar, and the mongod checks their privileges. It cannot check requests that
only the cluster itself may send, and commands that the daemon answers itself. After each step of a log-in the daemon
queries the mongod for the client's identity; no address, socket or request field determines it.

The mongod behind a sidecar has no sharding. It ignores the internal fields instead of refusing them, and lacks some of
the commands. Test commands are enabled on it for `prepareTransaction`, and some of them need no log-in.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Generic

from shardwright.daemon.command_table import Command, Handler
from shardwright.daemon.sidecar.client_authentication import AUTHENTICATE, SPECULATIVE, without_certificate
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.users import CLUSTER, Privileges, Resource, UserName, with_owner_of_session
from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.message import reply_document
from shardwright.wire.rawbson import OBJECT, decode_document, spans_at_any_depth
from shardwright.wire.request import Request
from shardwright.wire.request_validation import refuse_repeated_fields, refuse_repeated_join_fields
from shardwright.wire.trace_context import TRACE_CONTEXT
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cluster_auth import ClusterAuth

_LOG_INS: Final = frozenset({AUTHENTICATE, "logout", "saslContinue", "saslStart"})
_CLUSTER_TIME: Final = b"$clusterTime"

_GOSSIPED: Final = frozenset({*TIMES, "$configTime", "$topologyTime"})

_REFUSAL: Final = "not authorized on {} to execute command "

INTERNAL_COMMANDS: Final = frozenset(
    {
        *("coordinateCommitTransaction", "prepareTransaction", "setShardVersion", "splitChunk", "mergeChunks"),
        *("clusterAbortTransaction", "clusterAggregate", "clusterCommitTransaction", "clusterDelete", "clusterFind"),
        *("clusterGetMore", "clusterInsert", "clusterUpdate", "moveChunk", "getDatabaseVersion"),
        # Test commands of mongod 6.0. The last one crashes it.
        *("captrunc", "clearLog", "configureFailPoint", "cpuload", "echo", "emptycapped", "godinsert"),
        *("httpClientRequest", "logMessage", "makeSnapshot", "pinHistoryReplicated", "reapLogicalSessionCacheNow"),
        *("refreshLogicalSessionCacheNow", "replSetTest", "replSetTestEgress", "setCommittedSnapshot", "sleep"),
        *("stageDebug", "testDeprecation", "testInternalTransactions", "testRemoval", "testReshardCloneCollection"),
        *("testVersion2", "testVersions1And2", "waitForFailPoint", "waitForOngoingChunkSplits", "whatsmysni"),
        "testDeprecationInVersion2",
    }
)
"""Internal commands without a leading underscore. With one, all commands but `_COMMANDS_OF_USERS` are internal."""

_COMMANDS_OF_USERS: Final = frozenset({"_hashBSONElement", "_isSelf", "_mergeAuthzCollections"})
"""Commands with a leading underscore that users may send, if the mongod allows them."""

_ON_ANY_DATABASE: Final = frozenset(
    {
        *("_configsvrCollMod", "_configsvrRenameCollectionMetadata", "_shardsvrCheckMetadataConsistency"),
        *("_shardsvrCheckMetadataConsistencyParticipant", "_shardsvrCollMod", "_shardsvrCollModParticipant"),
        *("_shardsvrCompactStructuredEncryptionData", "_shardsvrCreateCollection"),
        *("_shardsvrCreateCollectionParticipant", "_shardsvrCreateIndexes", "_shardsvrDropCollection"),
        "_shardsvrDropCollectionParticipant",
        *("_shardsvrDropCollectionIfUUIDNotMatching", "_shardsvrDropDatabase", "_shardsvrDropDatabaseParticipant"),
        *("_shardsvrDropIndexes", "_shardsvrMovePrimaryEnd", "_shardsvrMovePrimaryFinish", "_shardsvrMovePrimaryReady"),
        *("_shardsvrMovePrimaryReceive", "_shardsvrMovePrimaryStatus", "_shardsvrParticipantBlock"),
        *("_shardsvrRefineCollectionShardKey", "_shardsvrRenameCollection", "_shardsvrRenameCollectionParticipant"),
        *("_shardsvrRenameCollectionParticipantUnblock", "_shardsvrSetAllowMigrations"),
        *("clusterAggregate", "clusterDelete", "clusterFind", "clusterGetMore", "clusterInsert", "clusterUpdate"),
        *("captrunc", "cpuload", "echo", "emptycapped", "godinsert", "reapLogicalSessionCacheNow"),
        *("refreshLogicalSessionCacheNow", "stageDebug", "testDeprecation", "testDeprecationInVersion2", "testRemoval"),
        *("testVersion2", "testVersions1And2", "waitForOngoingChunkSplits", "setUserWriteBlockMode"),
    }
)
"""The commands checked here that run on other databases than ``admin`` too."""

INTERNAL_FIELDS: Final = frozenset(
    {
        *(b"shardVersion", b"databaseVersion", b"involvedNamespaces", b"$configTime", b"$topologyTime", b"$replData"),
        *(b"coordinator", b"$coordinator", b"mayChangeOwner", b"fromMongos", b"needsMerge", b"exchange"),
        *(b"clientSession", b"runtimeConstants", b"fromMigrate", b"mayBypassWriteBlocking", b"$audit", TRACE_CONTEXT),
    }
)
"""Fields between routers and shards that users must not send."""

_WITH_PIPELINES: Final = frozenset(
    {"aggregate", "collMod", "create", "explain", "findAndModify", "findandmodify", "update"}
)
_INTERNAL_STAGES: Final = frozenset({b"$mergeCursors", b"$queue", b"$setVariableFromSubPipeline", b"$doingMerge"})
_INTERNAL_PREFIX: Final = b"$_internal"
_INTERNAL_MARKS: Final = (*_INTERNAL_STAGES, _INTERNAL_PREFIX)


@dataclass(frozen=True, slots=True)
class Needed:
    """The privilege that users need for a command that the daemon answers itself.

    Attributes:
        on_collection: whether it is needed on the collection named by the first field as ``db.collection``; otherwise
            on the cluster.
    """

    action: str
    on_collection: bool = False

    def resource(self, request: Request) -> Resource:
        """Return the resource on which a request needs the action."""
        if not self.on_collection:
            return CLUSTER
        db, _, collection = request.collection.partition(".")
        return Resource(db, collection)


@dataclass(frozen=True, slots=True)
class SidecarCommand(Command[Handler], Generic[Handler]):
    """A command that the daemon answers itself, instead of its mongod.

    Attributes:
        needed: the privilege of the users who may run it; None if it is for the cluster alone.
    """

    _: KW_ONLY
    needed: Needed | None = None


class SidecarAccess:
    """Authorization of clients' requests before the daemon or its mongod executes them.

    Args:
        cluster_auth: which members' log-ins count.
        own_commands: the commands that the daemon answers itself.
        advances_oplog: whether the daemon writes a no-op for a request.
    """

    def __init__(
        self,
        cluster_auth: ClusterAuth,
        own_commands: Iterable[SidecarCommand[Any]],
        answers_itself: Callable[[Request], bool],
        text_of: Callable[[Request], str],
        advances_oplog: Callable[[Request], bool],
    ) -> None:
        self._cluster_auth = cluster_auth
        self._needed = {each.name: each.needed for each in own_commands if each.needed is not None}
        self._answers_itself = answers_itself
        self._text_of = text_of
        self._advances_oplog = advances_oplog

    async def admit(self, upstream: Upstream, request: Request) -> Request:
        """Check a request of a client outside of the cluster; return the request to execute.

        Raises:
            CommandError: Unauthorized; as `_check_cluster_time`.
            BackendError: the mongod is gone.
        """
        user = upstream.user
        name = request.name
        answers_itself = self._answers_itself(request)
        is_judged_here = _is_internal_command(name) or answers_itself
        if is_judged_here and request.db != "admin" and _is_for_admin_alone(name):
            raise CommandError(ErrorCode.Unauthorized, f"{name} may only be run against the admin database.")
        if _is_internal(request):
            raise self._refusal(request, user)
        _refuse_hazardous_joins(request)
        if answers_itself:
            if user is None:
                raise self._refusal(request, user)
            await self._check_own_command(upstream, request, user)
        if user is not None and _CLUSTER_TIME in request.fields and (answers_itself or self._advances_oplog(request)):
            await _check_cluster_time(upstream, request)
        request = without_certificate(request)
        return request if user is None else with_owner_of_session(request, user)

    async def learn_user(self, upstream: Upstream, *, has_certificate: bool = False) -> None:
        """Query the mongod for the user of a client's connection, which serves no commands until then.

        A mongod switched to mode ``x509`` at run time accepts the key until it restarts; this daemon does not.

        Args:
            has_certificate: whether the client has proven by its certificate that it belongs to the cluster.

        Raises:
            BackendError: the mongod is gone.
            CommandError: the mongod refuses to answer; AuthenticationFailed, the client has logged in with a key that
                is no longer valid. The client is disconnected after either.
        """
        was_internal = self.is_internal(upstream)
        try:
            info = await _status(upstream)
        except BaseException:
            upstream.break_off()
            raise
        users = [UserName(each["user"], each["db"]) for each in info["authenticatedUsers"]]
        user = users[0] if users else None
        is_new_member = user is not None and user.is_internal and not was_internal
        if is_new_member and not (has_certificate or self._cluster_auth.accepts_key):
            upstream.break_off()
            raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")
        upstream.note_user(user, info["authenticatedUserRoles"])

    async def with_signed_times(self, upstream: Upstream, request: Request, reply: bytes) -> bytes:
        """Replace the times in a daemon's own reply to a user by the times that the mongod sends to the user.

        The daemon's times are for members of the cluster. They are unsigned, so no server would accept them from the
        user, and they include the times of the catalog.

        Args:
            reply: the frame of a reply to any request.

        Raises:
            CommandError: the mongod refuses.
            BackendError: the mongod is gone.
        """
        if not self._answers_itself(request):
            return reply
        document = decode_document(response_body(reply))
        told = {name: value for name, value in document.items() if name not in _GOSSIPED}
        pong = await upstream.command("admin", {"ping": 1})
        told.update((name, pong[name]) for name in TIMES if name in pong)
        return reply_document(request.message.request_id, told)

    def as_sent(self, request: Request, reply: bytes) -> bytes:
        """Restore the user's command in the mongod's reply that a user may not run it.

        The mongod's text includes the owner of the session, and stages that the daemon has added.

        Args:
            reply: the frame of a reply that has ``ok: 0``.
        """
        document = decode_document(response_body(reply))
        if not str(document.get("errmsg", "")).startswith(_REFUSAL.format(request.db)):
            return reply
        return reply_document(request.message.request_id, {**document, "errmsg": self._words(request)})

    def is_internal(self, upstream: Upstream) -> bool:
        """Whether a client is a part of the cluster."""
        return upstream.user is not None and upstream.user.is_internal

    async def _check_own_command(self, upstream: Upstream, request: Request, user: UserName) -> None:
        needed = self._needed.get(request.name)
        if needed is not None:
            info = await _status(upstream, showPrivileges=True)
            privileges = Privileges.from_documents(info["authenticatedUserPrivileges"])
            if privileges.allow(needed.action, needed.resource(request)):
                return
        raise self._refusal(request, user)

    def _refusal(self, request: Request, user: UserName | None) -> CommandError:
        if user is None:
            return CommandError(ErrorCode.Unauthorized, f"command {request.name} requires authentication")
        return CommandError(ErrorCode.Unauthorized, self._words(request))

    def _words(self, request: Request) -> str:
        return _REFUSAL.format(request.db) + self._text_of(request)


async def _check_cluster_time(upstream: Upstream, request: Request) -> None:
    """Make the mongod check the cluster time that a user sends, before the daemon uses it for the user.

    The daemon acts as a part of the cluster, from which a mongod accepts any time. So it must not forward a time that
    the mongod would not accept from the user. The times of requests that only the mongod executes are checked with the
    request.

    Raises:
        CommandError: KeyNotFound, TimeProofMismatch or ClusterTimeFailsRateLimiter; the field is malformed.
        BackendError: the mongod is gone.
    """
    kind, _, start, _ = request.fields[_CLUSTER_TIME]
    if kind == OBJECT:  # the mongod refuses anything else
        refuse_repeated_fields(request.body, start, "$clusterTime")
    await upstream.command("admin", {"ping": 1, "$clusterTime": request.get(_CLUSTER_TIME)})


def may_log_in(request: Request) -> bool:
    """Whether a request may change the user of its connection."""
    return request.name in _LOG_INS or (request.name in HELLO_NAMES and SPECULATIVE in request.fields)


async def _status(upstream: Upstream, **arguments: bool) -> dict[str, Any]:
    reply = await upstream.command("admin", {"connectionStatus": 1, **arguments})
    info: dict[str, Any] = reply["authInfo"]
    return info


def _is_internal(request: Request) -> bool:
    """Whether only the cluster itself may send a request."""
    name = request.name
    if _is_internal_command(name):
        return True
    if not INTERNAL_FIELDS.isdisjoint(request.fields):
        return True
    if name not in _WITH_PIPELINES:
        return False
    frame = request.message.frame
    return any(mark in frame for mark in _INTERNAL_MARKS) and any(
        _is_internal_name(field) for document in _documents(request) for field, _ in spans_at_any_depth(document)
    )


def _refuse_hazardous_joins(request: Request) -> None:
    """Refuse joins that would crash the mongod (40413), also from users with all privileges."""
    if request.name in _WITH_PIPELINES:
        for document in _documents(request):
            refuse_repeated_join_fields(document)


def _is_internal_command(name: str) -> bool:
    """Whether only the cluster itself may send a command."""
    return name in INTERNAL_COMMANDS or (name.startswith("_") and name not in _COMMANDS_OF_USERS)


def _is_for_admin_alone(name: str) -> bool:
    """Whether an internal command, or one that the daemon answers itself, runs on the database ``admin`` alone."""
    return name not in _ON_ANY_DATABASE


def _documents(request: Request) -> Iterator[bytes]:
    """Yield all documents of a request: its body, and the statements in its sequences."""
    yield request.body
    for sequence in request.message.sequences:
        yield from sequence.documents


def _is_internal_name(name: bytes) -> bool:
    return name in _INTERNAL_STAGES or name.startswith(_INTERNAL_PREFIX)
