"""The two deployments as clients: their properties and contents, and retries of requests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from shardwright.sync.plan import Collection, Deployment
from shardwright.sync.replication import NOT_REPLICATED, OWN_COLLECTION, OWN_DATABASE, Filter
from shardwright.wire.logger import get_logger

_log = get_logger("sync.ends")

MAJORITY: Final = WriteConcern("majority")
VALUES: Final[CodecOptions[dict[str, Any]]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
RAW: Final = CodecOptions(document_class=RawBSONDocument)

SELECTION_MS: Final = 10_000

NAMESPACE_NOT_FOUND: Final = 26
USER_WRITES_BLOCKED: Final = 371
HISTORY_LOST: Final = frozenset({136, 280, 286})
"""CappedPositionLost, ChangeStreamFatalError, ChangeStreamHistoryLost."""

_TRANSIENT: Final = frozenset(
    {
        # Including LockFailed: for appendOplogNote, a mongod waits for its global lock for only a millisecond.
        *{6, 7, 89, 91, 107, 112, 189, 202, 246, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436, 14031},
        # A router's errors: a cursor or plan ended with its shard or collection, a shard has no primary or no majority
        # yet, another operation changes the collection or moves the database.
        *{43, 50, 117, 133, 134, 175, 216, 237},
        # Another operation, for example a move by the target's balancer, holds a lock or builds an index: LockTimeout,
        # LockBusy, BackgroundOperationInProgressForNamespace.
        *{24, 46, 12587},
        # CollectionUUIDMismatch: the collection was replaced after its UUID was read.
        361,
    }
)

_OF_SERVERS: Final = {
    "admin": ("system.", "tempusers", "temproles"),
    "local": ("system.", "replset.", "oplog.", "startup_log"),
    OWN_DATABASE: (OWN_COLLECTION,),
}
"""Name prefixes of the collections that servers or this command create in databases that are never replicated. For
``config`` there would be too many."""

Result = TypeVar("Result")

ATTEMPTS_MAX: Final = 10
FIRST_PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 64.0

REQUESTS_MAX: Final = 8
"""Default number of requests that `at_once` makes at a time."""


class End:
    """One deployment.

    Attributes:
        client: its client, whose documents are bytes.
        name: ``source`` or ``target``, for the log.
    """

    def __init__(self, name: str, uri: str) -> None:
        self.name = name
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(
            uri, document_class=RawBSONDocument, serverSelectionTimeoutMS=SELECTION_MS, retryWrites=True, w="majority"
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()

    def collection(self, namespace: str) -> AsyncCollection[Any]:
        """Return a collection whose documents are bytes."""
        database, _, name = namespace.partition(".")
        return self.client.get_database(database).get_collection(name)

    def own(self, name: str) -> AsyncCollection[dict[str, Any]]:
        """Return a collection of checkpoints, read and written with majority."""
        return self.client.get_database(OWN_DATABASE).get_collection(
            name, codec_options=VALUES, write_concern=MAJORITY, read_concern=ReadConcern("majority")
        )

    async def command(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its reply with decoded values."""
        return await self.client.get_database(database).command(dict(command), codec_options=VALUES)

    async def now(self) -> Timestamp:
        """Return the cluster time that the deployment has reached."""
        reply = await self.command("admin", {"ping": 1})
        found: Timestamp = reply["operationTime"]
        return found

    async def advance(self) -> Timestamp:
        """Write a note to every oplog, and return a time that a stream passes only after all earlier events."""
        now = await repeated(self.now)
        note = {"appendOplogNote": 1, "data": {"msg": "shardwright sync"}, "writeConcern": {"w": "majority"}}
        await repeated(lambda: self.command("admin", note))
        return now

    async def documents(self, database: str, command: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return all documents of a short collection."""
        name = next(iter(command.values()))
        cursor = self.client.get_database(database).get_collection(str(name))
        found = await cursor.with_options(codec_options=VALUES).find(command.get("filter", {})).to_list()
        return [dict(each) for each in found]

    async def deployment(self, chosen: Filter) -> Deployment:
        """Describe the deployment and its collections."""
        hello = await self.command("admin", {"hello": 1})
        build = await self.command("admin", {"buildInfo": 1})
        is_sharded = hello.get("msg") == "isdbgrid"
        identity = await self.identity(is_sharded=is_sharded)
        shards: dict[str, list[str]] = {}
        if is_sharded:
            for shard in await self.documents("config", {"find": "shards"}):
                shards[shard["_id"]] = list(shard.get("tags", ()))
        collections: dict[str, Collection] = {}
        for database in await self.client.list_database_names():
            if database in NOT_REPLICATED or not chosen.may_have(database):
                continue
            for each in await self.collections(database, is_sharded=is_sharded):
                name = each.namespace.partition(".")[2]
                is_own = name.startswith("system.") and name != "system.js"
                if not is_own and (chosen.has(each.namespace) or name == "system.js"):
                    collections[each.namespace] = each
        return Deployment(
            is_sharded,
            tuple(build["versionArray"][:2]),
            identity,
            collections,
            await self._users(is_sharded=is_sharded),
            await self._left_out(chosen, is_sharded=is_sharded),
            shards,
        )

    async def identity(self, *, is_sharded: bool) -> str:
        """Return the id of the cluster, or of the replica set."""
        if is_sharded:
            [version] = await self.documents("config", {"find": "version"}) or [{"clusterId": "unknown"}]
            return str(version["clusterId"])
        [config] = await self.documents("local", {"find": "system.replset"}) or [{}]
        return str(config.get("settings", {}).get("replicaSetId", config.get("_id")))

    async def collections(
        self, database: str, *, is_sharded: bool, named: str | None = None, has_indexes: bool = True
    ) -> list[Collection]:
        """Return the collections of a database, or only the named one, with their shard keys.

        Args:
            has_indexes: whether to read the indexes too, with a request for each collection.
        """
        sharded: dict[str, dict[str, Any]] = {}
        zones: dict[str, list[dict[str, Any]]] = {}
        if is_sharded:
            # "/" follows ".", so the range has exactly the names that begin with "DATABASE.".
            of_database = {"$gte": f"{database}.", "$lt": f"{database}/"}
            only: Any = of_database if named is None else f"{database}.{named}"
            entries = await self.documents("config", {"find": "collections", "filter": {"_id": only}})
            sharded = {entry["_id"]: entry for entry in entries}
            for tag in await self.documents("config", {"find": "tags", "filter": {"ns": only}}):
                zones.setdefault(tag["ns"], []).append({name: tag[name] for name in ("min", "max", "tag")})
        found = []
        async with await self.client.get_database(database, codec_options=VALUES).list_collections(
            filter={} if named is None else {"name": named}
        ) as cursor:
            async for each in cursor:
                namespace = f"{database}.{each['name']}"
                kind = str(each.get("type", "collection"))
                entry = sharded.get(namespace, {})
                indexes = await self.indexes(namespace) if has_indexes and kind == "collection" else []
                uuid = each.get("info", {}).get("uuid")
                found.append(
                    Collection(
                        namespace,
                        kind,
                        dict(each.get("options", {})),
                        None if uuid is None else bytes(uuid),
                        indexes,
                        entry.get("key"),
                        bool(entry.get("unique")),
                        zones.get(namespace, []),
                    )
                )
        return found

    async def listed(self, chosen: Filter, *, is_sharded: bool) -> list[Collection]:
        """Return the selected collections and views of all databases, without indexes."""
        found: list[Collection] = []
        for database in await self.client.list_database_names():
            if database not in NOT_REPLICATED and chosen.may_have(database):
                found += await self.collections(database, is_sharded=is_sharded, has_indexes=False)
        return [each for each in found if chosen.has(each.namespace) or each.namespace.endswith(".system.js")]

    async def indexes(self, namespace: str) -> list[dict[str, Any]]:
        """Return the indexes of a collection except the one on ``_id``."""
        database, _, name = namespace.partition(".")
        collection = self.client.get_database(database, codec_options=VALUES).get_collection(name)
        try:
            found = [dict(each) async for each in await collection.list_indexes()]
        except OperationFailure as error:
            if error.code == NAMESPACE_NOT_FOUND:
                return []
            raise
        return [each for each in found if each["key"] != {"_id": 1} and not each.get("clustered")]

    async def estimated_documents(self, namespaces: Iterable[str]) -> int:
        """Estimate the number of documents in collections."""
        return sum([await self.collection(each).estimated_document_count() for each in namespaces])

    async def uuid(self, namespace: str) -> bytes | None:
        """Return the UUID of a collection; None if there is no such collection."""
        database, _, name = namespace.partition(".")
        command = {"listCollections": 1, "filter": {"name": name}}
        reply = await self.command(database, command)
        batch = reply["cursor"]["firstBatch"]
        uuid = batch[0].get("info", {}).get("uuid") if batch else None
        return None if uuid is None else bytes(uuid)

    async def _left_out(self, chosen: Filter, *, is_sharded: bool) -> list[str]:
        """Return the selected collections of users in databases that are never replicated."""
        found: list[str] = []
        for database, servers in _OF_SERVERS.items():
            if database == "local" and is_sharded:
                continue  # a router has no such database
            try:
                names = await self.client.get_database(database).list_collection_names()
            except OperationFailure as error:
                _log.warning("Collections could not be listed", end=self.name, database=database, error=str(error))
                continue
            found += [f"{database}.{name}" for name in sorted(names) if not name.startswith(servers)]
        return [each for each in found if chosen.selects(each)]

    async def _users(self, *, is_sharded: bool) -> list[str]:
        found = []
        for command, field in (
            ({"usersInfo": {"forAllDBs": True}}, "users"),
            ({"rolesInfo": 1, "showBuiltinRoles": False}, "roles"),
        ):
            try:
                reply = await self.command("admin", command)
            except OperationFailure as error:
                _log.warning("Users could not be read", end=self.name, error=str(error))
                continue
            found += [str(each["_id"]) for each in reply.get(field, [])]
        return found


def is_transient(error: BaseException) -> bool:
    """Whether a request may succeed when it is repeated."""
    if isinstance(error, ConnectionFailure):
        return True
    if not isinstance(error, PyMongoError):
        return False
    if any(error.has_error_label(label) for label in ("TransientTransactionError", "RetryableWriteError")):
        return True
    return isinstance(error, OperationFailure) and error.code in _TRANSIENT


def check_cancellation() -> None:
    """Raise CancelledError if the current task has been cancelled; endless loops over requests call it in each round.

    A request of pymongo may swallow a cancellation that arrives while it completes, in particular before Python 3.12,
    whose `asyncio.wait_for` no longer does. The loop would continue, and its task group would wait for it for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def repeated(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a request after transient errors, and return its result.

    Raises:
        PyMongoError: the error of the last attempt, or a permanent one.
    """
    for seconds in pauses():
        try:
            result = await attempt()
        except PyMongoError as error:
            check_cancellation()
            if not is_transient(error):
                raise
            _log.warning("A request failed and is repeated", error=str(error), seconds=seconds)
        else:
            check_cancellation()
            return result
        await asyncio.sleep(seconds)
    return await attempt()


async def at_once(
    requests: Iterable[Callable[[], Awaitable[Result]]], requests_max: int = REQUESTS_MAX
) -> list[Result]:
    """Make requests in order, a few at a time, and return their results in the same order.

    Raises:
        ExceptionGroup: some have failed; the others are cancelled.
    """
    free = asyncio.Semaphore(requests_max)

    async def one(request: Callable[[], Awaitable[Result]]) -> Result:
        async with free:
            return await request()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(each)) for each in requests]
    return [each.result() for each in running]


def pauses() -> Iterator[float]:
    """Yield the seconds to wait after each failure but the last: 1, 2, 4 …, at most `PAUSE_SECONDS_MAX`."""
    for attempt in range(ATTEMPTS_MAX - 1):
        yield min(FIRST_PAUSE_SECONDS * 2**attempt, PAUSE_SECONDS_MAX)
