"""The further namespaces of an operation: names in its pipeline, and the collections of views.

Our router sends versions for the namespaces named in the pipeline. It cannot send them for namespaces behind a view,
because only this shard has the definition. A genuine router sends none at all. Without versions, this shard checks by
itself that the namespaces are unsharded and live here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import bson

from shardwright.daemon.command_table import first_stage_names
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import MetadataRefresher
from shardwright.shardd.metadata.views import READS_OF_VIEWS, ResolvedView, Views
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import (
    INVOLVED_NAMESPACES,
    JOINED_NAMESPACE,
    involved_namespaces,
    may_involve_others,
    received_versions,
    writes,
)
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION, UNSHARDED, ChunkVersion, DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, op_msg
from shardwright.wire.rawbson import ARRAY, OBJECT, Span, decode_value, find, with_value
from shardwright.wire.request import Request

_MERGE_CURSORS: Final = b"$mergeCursors"


def merges_cursors(request: Request) -> bool:
    """Whether a request is an ``aggregate`` that begins with ``$mergeCursors``; it does not read its own namespace."""
    if request.name != "aggregate" or _MERGE_CURSORS not in request.body:
        return False
    return _MERGE_CURSORS in first_stage_names(request)


_NO_BATCH_SIZE: Final = bson.encode({})


def is_writing(request: Request) -> bool:
    """Whether a request is an ``aggregate`` that writes; an explain does not. May raise InvalidBSON."""
    if request.name != "aggregate" or not may_involve_others(request.body):
        return False
    span = request.fields.get(b"pipeline")
    return span is not None and span[0] == ARRAY and writes(request.body, span[2])


def without_batch_size(request: Request) -> Request:
    """Return the ``aggregate`` without ``batchSize``, so that mongod writes before it replies.

    With ``batchSize: 0`` mongod would open a cursor and write at the first ``getMore``, which carries no version. Other
    sizes do not matter, since there are no results.
    """
    span = request.fields.get(b"cursor")
    if span is None or span[0] != OBJECT:
        return request  # malformed: mongod reports it
    message = request.message
    body = with_value(request.body, span, _NO_BATCH_SIZE)
    return Request(OpMsg(op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT)))


_WITH_PIPELINE: Final = frozenset({"aggregate", "explain"})

_ON_BUCKETS: Final = frozenset(
    {
        *("insert", "update", "delete", "createIndexes", "dropIndexes", "deleteIndexes", "listIndexes"),
        *("collStats", "collstats"),
    }
)
"""Commands apart from reads that mongod redirects from a time-series collection to its buckets."""

_WRITES_TO_BUCKETS: Final = _ON_BUCKETS - {"listIndexes", "collStats", "collstats"}

Received = Mapping[bytes, Span]


@dataclass(frozen=True, slots=True)
class InvolvedNamespace:
    """A further namespace that an operation reads or writes.

    Attributes:
        received: its versions in the command; None if the router sent none.
        view: the view that the operation reads, if the namespace is involved only through a view.
        is_addressed: whether it holds the buckets of the time-series collection that the operation names. The router
            would name sharded buckets directly, so it assumes that these are unsharded.
    """

    state: NamespaceState
    database: DatabaseState
    is_written: bool
    received: Received | None = None
    view: ResolvedView | None = None
    is_addressed: bool = False

    def check(self, body: bytes, shard: str) -> None:
        """Check that the namespace matches the router's versions, is unsharded, and is on this shard.

        Raises:
            StaleError: a version does not match, or the namespace is unknown and needs a refresh.
            CommandError: the namespace is not on this shard alone. CommandOnShardedViewNotSupportedOnMongod if the
                router can resolve the view; else CommandNotSupported, with the namespace if the router can join it.
        """
        self._check_versions(body)
        if self.state.table is not None:
            raise self._refusal("it is sharded")
        entry = self.database.entry
        if entry is None and self.is_written:
            raise CommandError(ErrorCode.NamespaceNotFound, f"database {self.database.name} not found")
        if entry is not None and entry.primary != shard:
            raise self._refusal(f"it is on {entry.primary}")

    def _check_versions(self, body: bytes) -> None:
        received = self.received or {}
        database = received.get(DATABASE_VERSION)
        if database is not None:
            self.database.check_version(body[database[2] : database[3]], DatabaseVersion.from_span(body, database))
        version = received.get(SHARD_VERSION)
        if version is not None:
            self.state.check_version(body[version[2] : version[3]], ChunkVersion.from_span(body, version))
        elif self.is_addressed or not self.state.is_known:
            self.state.check_version(UNSHARDED.raw, UNSHARDED)  # raises, which causes a refresh

    def _refusal(self, reason: str) -> CommandError:
        if self.view is not None:
            return self.view.error()
        return CommandError(
            ErrorCode.CommandNotSupported,
            f"This aggregation involves the collection {self.state.namespace}, but {reason}: other collections of a "
            "pipeline have to be unsharded and on the shard that runs it",
            extra={} if self.is_written else {JOINED_NAMESPACE: self.state.namespace},
        )


@dataclass(frozen=True, slots=True)
class Involvement:
    """All further namespaces of an operation, found with one generation of the view definitions."""

    namespaces: tuple[InvolvedNamespace, ...]
    view_generation: int

    @classmethod
    def none(cls) -> "Involvement":
        """Return the involvement of an operation that involves no others, or has not been examined yet."""
        return _NO_INVOLVEMENT

    @property
    def writes(self) -> bool:
        """Whether the operation writes to any of the namespaces."""
        return any(each.is_written for each in self.namespaces)


_NO_INVOLVEMENT: Final = Involvement((), -1)
_NONE: Final[Mapping[str, Received]] = {}


class InvolvementFinder:
    """The search for the further namespaces of operations."""

    def __init__(
        self,
        namespace: Callable[[str], NamespaceState],
        database: Callable[[str], DatabaseState],
        refresher: MetadataRefresher,
        views: Views,
    ) -> None:
        self._namespace = namespace
        self._database = database
        self._refresher = refresher
        self._views = views

    def is_needed(self, request: Request, state: NamespaceState) -> bool:
        """Whether an operation on a namespace may involve others; usually decided without reading the command.

        Any operation on a time-series collection involves its buckets.
        """
        name = request.name
        if name in _ON_BUCKETS:
            return state.table is None and not self._views.is_known_collection(state.namespace)
        if name not in READS_OF_VIEWS:
            return False
        if state.table is None and not self._views.is_known_collection(state.namespace):
            return True
        return name in _WITH_PIPELINE and may_involve_others(request.body)

    def is_current(self, involvement: Involvement) -> bool:
        """Whether no view has changed since the involvement was determined."""
        return involvement.view_generation == self._views.generation

    async def check_collation(self, request: Request, state: NamespaceState) -> None:
        """Refuse a read of a view with a collation other than the view's.

        Raises:
            CommandError: OptionNotSupportedOnView; BadValue and others, the collation is malformed.
        """
        body, span = request.body, request.fields.get(b"collation")
        explained = next(iter(request.fields.values()))
        if request.name == "explain" and explained[0] == OBJECT:
            span = find(body, b"collation", explained[2])
        if span is not None and span[0] == OBJECT:
            await self._views.check_collation(Namespace.parse(state.namespace), decode_value(body, span))

    async def find(self, request: Request, state: NamespaceState) -> Involvement:
        """Return the further namespaces of an operation on a namespace.

        Raises:
            CommandError: InvalidBSON, Overflow, TypeMismatch or FailedToParse, the command is malformed; or a view or a
                database could not be read.
        """
        generation = self._views.generation
        span = request.fields.get(INVOLVED_NAMESPACES)
        received = _NONE if span is None else received_versions(request.body, span)
        found: dict[str, InvolvedNamespace] = {}
        view = await self._view(state)
        if request.name in _ON_BUCKETS:
            if view is not None and view.is_time_series:
                is_written = request.name in _WRITES_TO_BUCKETS
                await self._add(found, str(view.on), is_written=is_written, is_addressed=True)
            return Involvement(tuple(found.values()), generation)
        if view is not None:
            for name in view.involved:
                await self._add(found, name, view=view)
        for name, is_written in named_namespaces(request).items():
            # mongod refuses to write to a view.
            await self._add(found, name, received.get(name), is_written=is_written)
        await self._add_below(found)
        return Involvement(tuple(found.values()), generation)

    async def _view(self, state: NamespaceState) -> ResolvedView | None:
        is_plain = state.table is not None or self._views.is_known_collection(state.namespace)
        return None if is_plain else await self._views.resolve(state.namespace)

    async def _add_below(self, found: dict[str, InvolvedNamespace]) -> None:
        """Add the namespaces behind the namespaces that are views themselves."""
        waiting = [each for each in found.values() if not each.is_written]
        while waiting:
            above = waiting.pop()
            view = await self._view(above.state)
            for name in view.involved if view is not None else ():
                if name not in found:
                    await self._add(found, name, view=above.view)
                    waiting.append(found[name])

    async def _add(
        self,
        found: dict[str, InvolvedNamespace],
        name: str,
        received: Received | None = None,
        *,
        is_written: bool = False,
        view: ResolvedView | None = None,
        is_addressed: bool = False,
    ) -> None:
        db = Namespace.parse(name).db
        if Namespace.parse(name).is_internal:
            return  # its placement is fixed
        database = self._database(db)
        if received is None and database.entry is None:
            await self._refresher.refresh_database(database)
        known = found.get(name)
        if known is not None:
            received, view = received or known.received, known.view
            is_written = is_written or known.is_written
        found[name] = InvolvedNamespace(self._namespace(name), database, is_written, received, view, is_addressed)


def named_namespaces(request: Request) -> Mapping[str, bool]:
    """Return the namespaces in a command's pipeline, and whether it writes to each; an explain writes to none."""
    body = request.body
    if request.name not in _WITH_PIPELINE or not may_involve_others(body):
        return {}
    if request.name == "aggregate":
        span = request.fields.get(b"pipeline")
        return {} if span is None or span[0] != ARRAY else involved_namespaces(body, request.db, span[2])
    explained = next(iter(request.fields.values()))
    span = find(body, b"pipeline", explained[2]) if explained[0] == OBJECT else None
    if span is None or span[0] != ARRAY:
        return {}
    return dict.fromkeys(involved_namespaces(body, request.db, span[2]), False)
