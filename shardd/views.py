"""Views whose collection is sharded: they cannot be run on one shard, so the router is told what they stand for.

A view on an unsharded collection lives on the same shard as its collection, where mongod runs it by itself. So only the
definition has to be known, to see what a view stands on. Definitions are remembered on the primary, through whose
daemon every change of one passes; a secondary looks each time.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from daemon.sidecar.mongod import LocalMongod
from shardd.local_collections import describe
from shardd.namespace_state import NamespaceState
from sharding.namespace import Namespace
from wire.error_codes import ErrorCode
from wire.errors import CommandError

READS_OF_VIEWS: Final = frozenset({"find", "aggregate", "count", "distinct", "explain"})
CHANGES_OF_VIEWS: Final = frozenset({"create", "collMod", "drop", "dropDatabase", "renameCollection"})

_NESTING_MAX: Final = 20
"""As mongod's limit for views on views."""


@dataclass(frozen=True, slots=True)
class _View:
    """One definition."""

    on: Namespace
    pipeline: tuple[Mapping[str, Any], ...]
    collation: Mapping[str, Any]


class Views:
    """The views of the own mongod.

    Args:
        mongod: where they are defined.
        state: gives the state of a namespace.
        refresh: makes the metadata of a namespace known.
        is_primary: whether the own mongod is primary.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        state: Callable[[str], NamespaceState],
        refresh: Callable[[NamespaceState], Awaitable[None]],
        is_primary: Callable[[], bool],
    ) -> None:
        self._mongod = mongod
        self._state = state
        self._refresh = refresh
        self._is_primary = is_primary
        self._known: dict[str, _View | None] = {}

    def forget(self) -> None:
        """Some definition may have changed."""
        self._known.clear()

    def is_known_collection(self, namespace: str) -> bool:
        """Whether a namespace is known not to be a view, which is all that most reads have to ask."""
        return namespace in self._known and self._known[namespace] is None

    async def check_read(self, namespace: str) -> None:
        """Let a read on an unsharded namespace go on to mongod unless it is a view on a sharded collection.

        Raises:
            CommandError: CommandOnShardedViewNotSupportedOnMongod, with what the view stands for.
        """
        pipeline: list[Mapping[str, Any]] = []
        collation: Mapping[str, Any] = {}
        base = Namespace.parse(namespace)
        for _ in range(_NESTING_MAX):
            view = await self._definition(base)
            if view is None:
                break
            pipeline[:0] = view.pipeline
            collation = collation or view.collation
            base = view.on
        if not pipeline and not collation:
            return
        state = self._state(str(base))
        if not state.is_known:
            await self._refresh(state)
        if state.table is not None:
            raise CommandError(
                ErrorCode.CommandOnShardedViewNotSupportedOnMongod,
                "Resolved views on sharded collections must be executed by mongos",
                extra={"resolvedView": {"ns": str(base), "pipeline": pipeline, "collation": collation}},
            )

    async def _definition(self, namespace: Namespace) -> _View | None:
        name = str(namespace)
        if name in self._known:
            return self._known[name]
        found = await describe(self._mongod, namespace)
        view = None
        if found is not None and found.kind == "view":
            view = _View(
                namespace.with_collection(found.options["viewOn"]),
                tuple(found.options.get("pipeline", ())),
                found.options.get("collation", {"locale": "simple"}),
            )
        # Without the collection there is nothing whose change could be noticed.
        if found is not None and self._is_primary():
            self._known[name] = view
        return view
