"""Which namespaces an operation involves besides the one that it is about: of its pipeline, and of views.

The router names those that stand in the pipeline, with the versions by which it routed them. Those behind a view, whose
definition only this shard knows, come without versions, as do all that a genuine router sends: they must be unsharded
and live here, which this shard finds out by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.refresh import MetadataRefresher
from shardwright.shardd.metadata.views import READS_OF_VIEWS, ResolvedView, Views
from shardwright.sharding.involved_namespaces import (
    INVOLVED_NAMESPACES,
    involved_namespaces,
    may_involve_others,
    received_versions,
)
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION, UNSHARDED, ChunkVersion, DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, Span, decode_value, find
from shardwright.wire.request import Request

_WITH_PIPELINE: Final = frozenset({"aggregate", "explain"})

Received = Mapping[bytes, Span]


@dataclass(frozen=True, slots=True)
class InvolvedNamespace:
    """A further namespace that an operation reads or writes.

    Attributes:
        state: what the shard knows of it.
        database: what the shard knows of its database.
        is_written: whether the operation writes to it.
        received: where in the command its versions are; None if the router sent none.
        view: the view that the operation reads, if it is involved only through that.
    """

    state: NamespaceState
    database: DatabaseState
    is_written: bool
    received: Received | None = None
    view: ResolvedView | None = None

    def check(self, body: bytes, shard: str) -> None:
        """Refuse it unless it is as the router took it to be, and unsharded, and on this shard.

        Args:
            body: the command.
            shard: this shard.

        Raises:
            StaleError: another version; or nothing is known of it yet, which a refresh changes.
            CommandError: it can't be had on this shard alone: CommandOnShardedViewNotSupportedOnMongod where the router
                can help itself, else CommandNotSupported.
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
            self.database.check(body[database[2] : database[3]], DatabaseVersion.from_span(body, database))
        version = received.get(SHARD_VERSION)
        if version is not None:
            self.state.check(body[version[2] : version[3]], ChunkVersion.from_span(body, version))
        elif not self.state.is_known:
            self.state.check(UNSHARDED.raw, UNSHARDED)  # raises, so that it is refreshed

    def _refusal(self, reason: str) -> CommandError:
        if self.view is not None:
            return self.view.error()
        return CommandError(
            ErrorCode.CommandNotSupported,
            f"This aggregation involves the collection {self.state.namespace}, but {reason}: other collections of a "
            "pipeline have to be unsharded and on the shard that runs it",
        )


@dataclass(frozen=True, slots=True)
class Involvement:
    """All further namespaces of an operation.

    Attributes:
        namespaces: what it reads or writes besides its own namespace.
        view_generation: of the definitions of views that were looked at.
    """

    namespaces: tuple[InvolvedNamespace, ...]
    view_generation: int

    @classmethod
    def none(cls) -> "Involvement":
        """Of an operation that involves nothing else, or has not been looked at."""
        return _NO_INVOLVEMENT

    @property
    def writes(self) -> bool:
        """Whether one of them is written."""
        return any(each.is_written for each in self.namespaces)


_NO_INVOLVEMENT: Final = Involvement((), -1)
_NONE: Final[Mapping[str, Received]] = {}


class InvolvementFinder:
    """Finds out what operations involve.

    Args:
        namespace: the state of a namespace, made when first asked for.
        database: the state of a database, likewise.
        refresher: brings states up to date.
        views: the views of the shard's mongod.
    """

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
        """Whether an operation on a namespace may involve others; the answer for most takes no look at the command."""
        name = request.name
        if name not in READS_OF_VIEWS:
            return False
        if state.table is None and not self._views.is_known_collection(state.namespace):
            return True
        return name in _WITH_PIPELINE and may_involve_others(request.body)

    def is_current(self, involvement: Involvement) -> bool:
        """Whether no view has changed since."""
        return involvement.view_generation == self._views.generation

    async def check_collation(self, request: Request, state: NamespaceState) -> None:
        """Refuse a read of a view that names another collation than the view's.

        Raises:
            CommandError: OptionNotSupportedOnView; BadValue and others, it is none.
        """
        body, span = request.body, request.fields.get(b"collation")
        explained = next(iter(request.fields.values()))
        if request.name == "explain" and explained[0] == OBJECT:
            span = find(body, b"collation", explained[2])
        if span is not None and span[0] == OBJECT:
            await self._views.check_collation(Namespace.parse(state.namespace), decode_value(body, span))

    async def find(self, request: Request, state: NamespaceState) -> Involvement:
        """The further namespaces of an operation on a namespace.

        Raises:
            CommandError: InvalidBSON, Overflow, TypeMismatch or FailedToParse, the command is malformed; what is needed
                could not be read.
        """
        generation = self._views.generation
        span = request.fields.get(INVOLVED_NAMESPACES)
        received = _NONE if span is None else received_versions(request.body, span)
        found: dict[str, InvolvedNamespace] = {}
        view = await self._view(state)
        if view is not None:
            for name in view.involved:
                await self._add(found, name, view=view)
        for name, is_written in named_namespaces(request).items():
            # What is written is no view, or mongod says so.
            await self._add(found, name, received.get(name), is_written=is_written)
        await self._add_below(found)
        return Involvement(tuple(found.values()), generation)

    async def _view(self, state: NamespaceState) -> ResolvedView | None:
        is_plain = state.table is not None or self._views.is_known_collection(state.namespace)
        return None if is_plain else await self._views.resolve(state.namespace)

    async def _add_below(self, found: dict[str, InvolvedNamespace]) -> None:
        """Add what those involve that are views themselves."""
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
        found[name] = InvolvedNamespace(self._namespace(name), database, is_written, received, view)


def named_namespaces(request: Request) -> Mapping[str, bool]:
    """The namespaces that the pipeline in a command names, and which of them it writes; explaining it writes none."""
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
