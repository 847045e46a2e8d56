"""Reads of one cluster through its routers, with the rights of one user.

Replies are cached for a short time, so that several open pages cost no more than one. A slow read is cached for
as long as it took, even if it failed. So a process that hangs delays only one of several pages. Readers are never
shared between users, so that a cached reply was always read with the same user's rights.

A browser abandons a request after 15 seconds. Limits for pages are below that, so that they can show why a read failed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.errors import InvalidName, OperationFailure, PyMongoError

from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from pymongo.asynchronous.collection import AsyncCollection

_log = get_logger("console.reader")

Value = TypeVar("Value")
Document = dict[str, Any]

SECONDS_MAX: Final = 10.0
"""Maximum time of a read without which a page has nothing to show."""

PART_SECONDS_MAX: Final = 6.0
"""Maximum time of a part of a page. The driver's search for a router ends earlier, so its error gives the reason."""

_ROUTER_SECONDS_MAX: Final = 4.0
"""Maximum time of one router's reply. It is shorter, so that the replies of the other routers are shown."""

ENTRIES_MAX: Final = 500
"""Maximum number of cached results, and of results that are cached until their version changes."""

_REST: Final = 100
_BATCH_DOCUMENTS: Final = 10_000
_RAW: Final = CodecOptions(document_class=RawBSONDocument)
_UNAUTHORIZED: Final = 13
_AUTHENTICATION_FAILED: Final = 18

_only_router: ContextVar[tuple[str, int | None] | None] = ContextVar("only_router", default=None)


Entry = TypeVar("Entry", "_Kept", "_Versioned")


def router_selector(servers: Sequence[Any]) -> Sequence[Any]:
    """Select the router that a command is meant for; the ``server_selector`` of the driver."""
    only = _only_router.get()
    return servers if only is None else [each for each in servers if each.address == only]


class Refused(Exception):
    """The cluster refused a read, or did not answer.

    Attributes:
        is_of_rights: whether the user lacks a privilege.
        is_away: whether the cluster did not answer.
    """

    def __init__(self, text: str, *, is_of_rights: bool = False, is_away: bool = False) -> None:
        super().__init__(text)
        self.is_of_rights = is_of_rights
        self.is_away = is_away


class LoggedOut(Exception):
    """The cluster no longer accepts the user's log-in, so that no further read can succeed.

    It is not a `Refused`, because views show what remains after a refusal.
    """


@dataclass(frozen=True, slots=True)
class _Kept:
    """A cached result, or the failure to read it.

    Attributes:
        until: the time on the monotonic clock when it expires.
    """

    value: Any
    until: float
    refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class _Versioned:
    """A result that is cached until its version changes.

    Attributes:
        until: the time on the monotonic clock from which a new version is read.
    """

    value: Any
    until: float
    version: object


@dataclass(slots=True)
class _Turn:
    """The lock of a key, while requests use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Reader:
    """The cluster as one user sees it. All reads raise `Refused` and `LoggedOut`."""

    def __init__(self, client: AsyncMongoClient[Document]) -> None:
        self.client = client
        # Both begin with the least recently used entry.
        self._kept: dict[object, _Kept] = {}
        self._versioned: dict[object, _Versioned] = {}
        self._turns: dict[object, _Turn] = {}

    @asynccontextmanager
    async def _turn(self, key: object) -> AsyncIterator[None]:
        """Wait for other requests with the same key."""
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]

    async def kept(self, key: object, seconds: float, read: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of a read, cached for some seconds; concurrent requests share one read."""
        async with self._turn(key):
            found = self._kept.get(key)
            if found is not None and time.monotonic() < found.until:
                _use(self._kept, key, found)
                if found.refused is not None:
                    raise found.refused.with_traceback(None)
                value: Value = found.value
                return value
            started = time.monotonic()
            try:
                value = await read()
            except Refused as refused:
                if refused.is_away:
                    now = time.monotonic()
                    _use(self._kept, key, _Kept(None, now + (now - started), refused))
                raise
            now = time.monotonic()
            _use(self._kept, key, _Kept(value, now + max(seconds, now - started)))
            return value

    async def until_changed(self, key: object, version: object, read: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of a read, cached until its version changes.

        An expensive read is repeated less often: reads take at most one percent of the time.
        """
        async with self._turn(("versioned", key)):
            found = self._versioned.get(key)
            if found is not None and (found.version == version or time.monotonic() < found.until):
                _use(self._versioned, key, found)
                value: Value = found.value
                return value
            started = time.monotonic()
            value = await read()
            now = time.monotonic()
            _use(self._versioned, key, _Versioned(value, now + (now - started) * _REST, version))
            return value

    async def rested(self, key: object, read: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of a read whose cost grows with the catalog; it takes at most one percent of the time."""
        return await self.until_changed(key, object(), read)

    def forget(self) -> None:
        """Clear the cache, for example after an action; a result remains while its version is the newest."""
        self._kept.clear()
        self._versioned = {key: _Versioned(each.value, -inf, each.version) for key, each in self._versioned.items()}

    async def command(
        self, command: Mapping[str, Any], db: str = "admin", *, seconds_max: float = SECONDS_MAX
    ) -> Document:
        """Run a command and return its reply."""
        name = str(next(iter(command)))

        async def run() -> Document:
            # Without this argument, pymongo decodes replies to commands with its default options, not the client's.
            codec_options = self.client.codec_options
            return await self.client[db].command(dict(command), codec_options=codec_options)

        return await _answered(run(), name, seconds_max)

    async def of_each_router(self, command: Mapping[str, Any], refusals: list[str]) -> dict[str, Document]:
        """Run a command on every router, and return the replies by address.

        Args:
            refusals: receives a text for each router without a reply.

        Raises:
            Refused: no router answers, or the user may not run the command.
        """
        if not self.client.nodes:
            await self.command({"ping": 1})

        async def one(router: tuple[str, int | None]) -> Document | Refused:
            _only_router.set(router)
            try:
                return await self.command(command, seconds_max=_ROUTER_SECONDS_MAX)
            except Refused as refused:
                return refused

        # The driver forgets that a server is a router when it does not answer, but keeps the address.
        known = self.client.nodes | self.client.topology_description.server_descriptions().keys()
        asked = sorted(self.client.nodes)
        replies = await asyncio.gather(*(asyncio.create_task(one(router)) for router in asked))
        found = {
            _address(router): reply
            for router, reply in zip(asked, replies, strict=True)
            if not isinstance(reply, Refused)
        }
        for reply in replies:
            if isinstance(reply, Refused) and (reply.is_of_rights or not found):
                raise reply
        missing = sorted({_address(router) for router in known} - found.keys())
        refusals += [f"router {router} did not answer: its part is missing" for router in missing]
        return found

    async def find(
        self,
        db: str,
        collection: str,
        query: Mapping[str, Any],
        *,
        sort: Sequence[tuple[str, int]] = (),
        limit: int = 1000,
        fields: Mapping[str, Any] | None = None,
    ) -> list[Document]:
        """Return the first documents that match."""
        cursor = self.client[db][collection].find(query, fields, limit=limit)
        return await _answered((cursor.sort(list(sort)) if sort else cursor).to_list(), f"{db}.{collection}")

    async def raw_batches(
        self, db: str, collection: str, query: Mapping[str, Any], *, sort: Sequence[tuple[str, int]]
    ) -> AsyncIterator[list[bytes]]:
        """Yield batches of all documents that match, as raw bytes."""
        found = self.client[db].get_collection(collection, codec_options=_RAW)
        documents = cast("AsyncCollection[RawBSONDocument]", found)
        async with documents.find(query).sort(list(sort)) as cursor:
            while batch := await _answered(cursor.to_list(_BATCH_DOCUMENTS), f"{db}.{collection}"):
                yield [bytes(document.raw) for document in batch]

    async def aggregate(
        self, db: str, collection: str | None, pipeline: Sequence[Mapping[str, Any]], limit: int = 2000
    ) -> list[Document]:
        """Return the first documents of an aggregation, on the database if ``collection`` is None."""

        async def read() -> list[Document]:
            target = self.client[db] if collection is None else self.client[db][collection]
            async with await target.aggregate(list(pipeline), allowDiskUse=True) as cursor:
                return await cursor.to_list(limit)

        return await _answered(read(), f"{db}.{collection}")


async def _answered(reading: Awaitable[Value], about: str, seconds_max: float = SECONDS_MAX) -> Value:
    try:
        return await asyncio.wait_for(reading, seconds_max)
    except OperationFailure as error:
        details = error.details or {}
        text = str(details.get("errmsg", error))
        if error.code == _AUTHENTICATION_FAILED:
            raise LoggedOut(f"the cluster refused the log-in: {text}") from error
        raise Refused(text, is_of_rights=error.code == _UNAUTHORIZED) from error
    except (BSONError, InvalidName) as error:
        raise Refused(f"{about} cannot be read: {error}") from error
    except PyMongoError as error:
        _log.warning("Could not read from the cluster", about=about, error=str(error))
        raise Refused(f"no router answers: {_first_line(error)}", is_away=True) from error
    except TimeoutError as error:
        raise Refused(f"no answer about {about} in {seconds_max:.0f} seconds", is_away=True) from error


def _use(entries: dict[object, Entry], key: object, entry: Entry) -> None:
    """Make an entry the most recently used one; evict the expired ones and then the least recently used ones."""
    entries.pop(key, None)
    entries[key] = entry
    if len(entries) <= ENTRIES_MAX:
        return
    now = time.monotonic()
    for each in [each for each, kept in entries.items() if isinstance(kept, _Kept) and kept.until <= now]:
        del entries[each]
    while len(entries) > ENTRIES_MAX:
        del entries[next(iter(entries))]


def set_name(connection_string: str) -> str:
    """Return the name of the replica set in ``set/host:port,…``, as ``config.shards`` has it."""
    return connection_string.partition("/")[0]


def _address(router: tuple[str, int | None]) -> str:
    return f"{router[0]}:{router[1]}"


def _first_line(error: Exception) -> str:
    return str(error).partition(", Timeout:")[0][:200]


async def maybe(reading: Awaitable[Value], fallback: Value, refusals: list[str]) -> Value:
    """Return the result of a read, or the fallback if the user may not read it; the reason is added to ``refusals``."""
    try:
        return await reading
    except Refused as refused:
        if not refused.is_of_rights:
            raise
        _add(refusals, str(refused))
        return fallback


async def partly(
    reader: Reader,
    key: object,
    seconds: float,
    read: Callable[[], Awaitable[Value]],
    fallback: Value,
    refusals: list[str],
) -> Value:
    """Return the result of a part of a page, cached as by `Reader.kept` together with a failure.

    A shard or config server that is away or slow must neither hide a whole page nor delay it again and again.

    Args:
        key: identifies the read in the cache.
        seconds: maximum age of a cached result.
        fallback: in place of the result after a failure.
        refusals: the reason of a failure is added.
    """

    async def attempted() -> tuple[Value, str]:
        try:
            return await asyncio.wait_for(read(), PART_SECONDS_MAX), ""
        except Refused as refused:
            return fallback, str(refused)
        except TimeoutError:
            return fallback, f"a shard or config server did not answer in {PART_SECONDS_MAX:.0f} seconds"

    value, reason = await reader.kept(key, seconds, attempted)
    _add(refusals, reason)
    return value


async def of_routers(
    reader: Reader, key: object, seconds: float, command: Mapping[str, Any], refusals: list[str]
) -> dict[str, Document]:
    """Return every router's reply to a command by address, as a part of a page; see `partly`.

    Args:
        refusals: receives the reason of a failure, and a text for each router without a reply.
    """

    async def read() -> tuple[dict[str, Document], list[str]]:
        missing: list[str] = []
        return await reader.of_each_router(command, missing), missing

    nothing: tuple[dict[str, Document], list[str]] = ({}, [])
    replies, missing = await partly(reader, key, seconds, read, nothing, refusals)
    _add(refusals, *missing)
    return replies


def _add(refusals: list[str], *reasons: str) -> None:
    refusals += [each for each in reasons if each and each not in refusals]
