"""A round of verification: its position and findings, as values that can be stored. Pure.

A round covers every collection once. After an interruption, another process continues at its position.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bson import encode
from bson.binary import Binary

from shardwright.sync.changes import Value
from shardwright.sync.ranges import Bound, Differences, id_bound
from shardwright.wire import rawbson

KEPT_MAX: Final = 200
"""Maximum number of differing documents kept per collection to be compared again; more are only noted as existing."""

KEPT_IN_ALL_MAX: Final = 20_000
"""Maximum number of differing documents kept for all collections of a round."""

SHOWN_MAX: Final = 100

STORED_BYTES_MAX: Final = 6_000_000
"""Maximum size of stored findings. A round and a report are stored together, in one document of at most 16 MB."""

TOUCHED_MAX: Final = 20_000


@dataclass
class Compared:
    """The findings for a collection.

    Attributes:
        documents: number of compared documents of the source.
        target_documents: number of compared documents of the target.
        missing: documents that only the source has.
        extra: documents that only the target has.
        different: documents that differ between the ends.
        problems: differences of options, indexes, shard key and zones.
        is_cut: whether more documents differ than are kept.
    """

    documents: int = 0
    target_documents: int = 0
    missing: set[Value] = field(default_factory=set)
    extra: set[Value] = field(default_factory=set)
    different: set[Value] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    is_cut: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.extra or self.different or self.problems or self.is_cut)

    @property
    def ids(self) -> set[Value]:
        """The ``_id`` values of all documents that differ."""
        return self.missing | self.extra | self.different

    def note(self, checked: Iterable[Value], found: Differences, *, kept_max: int = KEPT_MAX) -> None:
        """Replace the findings for some documents."""
        gone = set(checked)
        for known in (self.missing, self.extra, self.different):
            known -= gone
        for known, now in (
            (self.missing, found.missing),
            (self.extra, found.extra),
            (self.different, found.different),
        ):
            room = max(0, kept_max - len(self.ids))
            known |= set(now[:room])
            self.is_cut |= len(now) > room

    def stored(self) -> dict[str, Any]:
        """Return the findings in stored form."""
        return {
            "documents": self.documents,
            "target_documents": self.target_documents,
            **{name: [_stored(key) for key in getattr(self, name)] for name in ("missing", "extra", "different")},
            "problems": self.problems,
            "is_cut": self.is_cut,
        }

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "Compared":
        """Restore stored findings."""
        missing, extra, different = [
            {_restored(key) for key in stored[name]} for name in ("missing", "extra", "different")
        ]
        return cls(
            stored["documents"],
            stored["target_documents"],
            missing,
            extra,
            different,
            list(stored["problems"]),
            stored["is_cut"],
        )

    def shown(self) -> dict[str, Any]:
        """Return the findings for users, with at most `SHOWN_MAX` of the ``_id`` values."""
        some = sorted(self.ids)[:SHOWN_MAX]
        return {
            "documents": self.documents,
            "targetDocuments": self.target_documents,
            "missing": len(self.missing),
            "extra": len(self.extra),
            "different": len(self.different),
            "more": self.is_cut,
            "ids": [rawbson.decode_document(id_bound(key))["_id"] for key in some],
            "problems": self.problems,
        }


def _stored(key: Value) -> Binary:
    kind, value = key
    return Binary(bytes((kind,)) + value)


def _restored(stored: bytes) -> Value:
    return stored[0], bytes(stored[1:])


@dataclass
class Report:
    """Findings by namespace.

    Attributes:
        not_compared: collections that cannot be compared, with the reasons.
        kept: number of differing documents kept in all collections.
    """

    collections: dict[str, Compared] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    kept: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Count what is restored."""
        self.kept = sum(len(each.ids) for each in self.collections.values())

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return all(each.is_equal for each in self.collections.values())

    @property
    def mismatches(self) -> int:
        """The number of documents and properties that differ, as far as they are kept."""
        return sum(len(each.ids) + len(each.problems) for each in self.collections.values())

    def put(self, namespace: str, found: Compared) -> None:
        """Replace the findings for a collection with a copy of the given ones.

        They may come from another report that continues to change, and each report counts its own.
        """
        copied = replace(
            found,
            missing={*found.missing},
            extra={*found.extra},
            different={*found.different},
            problems=[*found.problems],
        )
        known = self.collections.get(namespace)
        self.kept += len(copied.ids) - (0 if known is None else len(known.ids))
        self.collections[namespace] = copied

    def keep(self, namespaces: Container[str]) -> None:
        """Remove the findings for all other collections."""
        self.collections = {name: each for name, each in self.collections.items() if name in namespaces}
        self.kept = sum(len(each.ids) for each in self.collections.values())

    def note(self, namespace: str, checked: Iterable[Value], found: Differences) -> None:
        """Replace the findings for some documents of a collection."""
        known = self.collections[namespace]
        others = self.kept - len(known.ids)
        known.note(checked, found, kept_max=min(KEPT_MAX, KEPT_IN_ALL_MAX - others))
        self.kept = others + len(known.ids)

    def stored(self, first: str | None = None) -> list[dict[str, Any]]:
        """Return the findings in stored form, as many as fit: collections that differ come before equal ones.

        Args:
            first: the namespace whose findings come before all others.
        """
        stored: list[dict[str, Any]] = []
        left = STORED_BYTES_MAX
        for namespace, each in sorted(self.collections.items(), key=lambda item: (item[0] != first, item[1].is_equal)):
            entry = {"ns": namespace, **each.stored()}
            size = len(encode(entry)) + len(encode({"": namespace}))  # a round also lists the name as done
            if size <= left:
                stored.append(entry)
                left -= size
        return stored

    def document(self) -> dict[str, Any]:
        """Return the report for users."""
        return {
            "equal": self.is_equal,
            "collections": {namespace: each.shown() for namespace, each in self.collections.items()},
            "notCompared": self.not_compared,
        }


@dataclass
class Round:
    """A round in progress.

    Attributes:
        current: the namespace being compared; None between two.
        position: the last compared ``_id`` in it.
        left: the next namespaces, in reverse order; more may be found when it is empty.
    """

    report: Report = field(default_factory=Report)
    done: set[str] = field(default_factory=set)
    current: str | None = None
    position: Bound = None
    left: list[str] = field(default_factory=list)

    def next(self, namespaces: Collection[str]) -> str | None:
        """Return the namespace to continue with; None if the round is complete.

        Args:
            namespaces: the present ones; some may have disappeared, or be new, since the round began.
        """
        if self.current in namespaces:
            return self.current
        self.current, self.position = None, None
        while self.left or self._find(namespaces):
            each = self.left.pop()
            if each in namespaces:
                self.current = each
                self.report.put(each, Compared())
                return each
        return None

    def _find(self, namespaces: Collection[str]) -> bool:
        """Find the namespaces that are not done, in time proportional to the number of all namespaces."""
        self.left = sorted((each for each in namespaces if each not in self.done), reverse=True)
        return bool(self.left)

    def passed(self) -> None:
        """Finish the current namespace."""
        assert self.current is not None
        self.done.add(self.current)
        self.current, self.position = None, None

    def stored(self, again: AbstractSet[str] = frozenset()) -> dict[str, Any]:
        """Return the round in stored form.

        Args:
            again: further namespaces to compare again, besides those whose findings do not fit.
        """
        collections = self.report.stored(self.current)
        lost = self.report.collections.keys() - {each["ns"] for each in collections}
        is_lost = self.current in lost
        return {
            "collections": collections,
            "not_compared": [{"ns": name, "reason": reason} for name, reason in self.report.not_compared.items()],
            "done": sorted(self.done - lost - again),
            "current": None if is_lost else self.current,
            "position": None if is_lost else self.position,
        }

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "Round":
        """Restore a stored round."""
        report = Report(
            {each["ns"]: Compared.restored(each) for each in stored["collections"]},
            {each["ns"]: each["reason"] for each in stored["not_compared"]},
        )
        position = stored["position"]
        return cls(report, set(stored["done"]), stored["current"], None if position is None else bytes(position))


class Touched:
    """Documents written since their last comparison, up to a maximum number.

    Attributes:
        is_full: whether there were more than `TOUCHED_MAX`, so that only a whole round compares them all.
    """

    def __init__(self) -> None:
        self.is_full = False
        self._ids: dict[str, set[Value]] = {}
        self._count = 0

    def note(self, namespace: str, ids: Iterable[Value]) -> None:
        """Add written documents."""
        known = self._ids.setdefault(namespace, set())
        before = len(known)
        known.update(ids)
        self._count += len(known) - before
        if self._count > TOUCHED_MAX:
            self.is_full = True
            self.take()

    def take(self) -> dict[str, set[Value]]:
        """Return all of them, and start with an empty set."""
        taken, self._ids, self._count = self._ids, {}, 0
        return taken
