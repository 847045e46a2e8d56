"""Reads of one cluster through its routers, with the rights of one user.

Replies are cached for a short time, so that several open pages cost no more than one. Readers are never shared between
users, so that a cached reply was always read with the same user's rights.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from pymongo.asynchronous.collection import AsyncCollection

Value = TypeVar("Value")
Document = dict[str, Any]

SECONDS_MAX: Final = 20.0
PART_SECONDS_MAX: Final = 8.0
_ENTRIES_MAX: Final = 500
_REST: Final = 100
_BATCH_DOCUMENTS: Final = 10_000
_RAW: Final = CodecOptions(document_class=RawBSONDocument)
_UNAUTHORIZED: Final = (13, 18)

_log = get_logger("console.reader")

_only_router: ContextVar[tuple[str, int | None] | None] = ContextVar("only_router", default=None)


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


class Reader:
    """The cluster as one user sees it. All reads raise `Refused`."""

    def __init__(self, client: AsyncMongoClient[Document]) -> None:
        self.client = client
        self._kept: dict[object, tuple[float, Any]] = {}
        self._locks: dict[object, asyncio.Lock] = {}

    async def kept(self, key: object, seconds: float, read: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of a read, cached for some seconds; concurrent requests share one read."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            found = self._kept.get(key)
            if found is not None and time.monotonic() - found[0] < seconds:
                value: Value = found[1]
                return value
            value = await read()
            if len(self._kept) >= _ENTRIES_MAX:
                self.forget()
            self._kept[key] = (time.monotonic(), value)
            return value

    async def until_changed(self, key: object, version: object, read: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of a read, cached until its version changes.

        An expensive read is repeated less often: reads take at most one percent of the time.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            found = self._kept.get(key)
            if found is not None:
                read_at, (known, seconds, kept) = found
                if known == version or time.monotonic() - read_at < seconds * _REST:
                    value: Value = kept
                    return value
            started = time.monotonic()
            value = await read()
            now = time.monotonic()
            self._kept[key] = (now, (version, now - started, value))
            return value

    async def rested(self, key: object, read: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of a read whose cost grows with the catalog; it takes at most one percent of the time."""
        return await self.until_changed(key, object(), read)

    def forget(self) -> None:
        """Clear the cache, for example after an action."""
        self._kept.clear()
        self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}

    async def command(
        self, command: Mapping[str, Any], db: str = "admin", *, seconds_max: float = SECONDS_MAX
    ) -> Document:
        """Run a command and return its reply."""
        name = str(next(iter(command)))
        return await _answered(self.client[db].command(dict(command)), name, seconds_max)

    async def of_each_router(self, command: Mapping[str, Any]) -> dict[str, Document]:
        """Run a command on every router, and return the replies by address.

        Raises:
            Refused: no router answers, or the user may not run the command.
        """
        await self.command({"ping": 1})

        async def one(router: tuple[str, int | None]) -> Document | Refused:
            _only_router.set(router)
            try:
                return await self.command(command)
            except Refused as refused:
                return refused

        routers = sorted(self.client.nodes)
        replies = await asyncio.gather(*(asyncio.create_task(one(router)) for router in routers))
        found = {
            f"{router[0]}:{router[1]}": reply
            for router, reply in zip(routers, replies, strict=True)
            if not isinstance(reply, Refused)
        }
        for reply in replies:
            if isinstance(reply, Refused) and (reply.is_of_rights or not found):
                raise reply
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
        raise Refused(str(details.get("errmsg", error)), is_of_rights=error.code in _UNAUTHORIZED) from error
    except PyMongoError as error:
        _log.warning("Could not read from the cluster", about=about, error=str(error))
        raise Refused(f"no router answers: {_first_line(error)}", is_away=True) from error
    except TimeoutError as error:
        raise Refused(f"no answer about {about} in {seconds_max:.0f} seconds", is_away=True) from error


def _first_line(error: Exception) -> str:
    return str(error).partition(", Timeout:")[0][:200]


async def maybe(reading: Awaitable[Value], fallback: Value, refusals: list[str]) -> Value:
    """Return the result of a read, or the fallback if the user may not read it; the reason is added to ``refusals``."""
    try:
        return await reading
    except Refused as refused:
        if not refused.is_of_rights:
            raise
        if str(refused) not in refusals:
            refusals.append(str(refused))
        return fallback


async def partly(
    reader: Reader,
    key: object,
    seconds: float,
    read: Callable[[], Awaitable[Value]],
    fallback: Value,
    refusals: list[str],
) -> Value:
    """Return the result of a read on all shards, cached as by `Reader.kept` together with a failure.

    One shard that is away or slow must neither hide a whole page nor delay it again and again.

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
            return fallback, f"a shard did not answer in {PART_SECONDS_MAX:.0f} seconds"

    value, reason = await reader.kept(key, seconds, attempted)
    if reason and reason not in refusals:
        refusals.append(reason)
    return value
