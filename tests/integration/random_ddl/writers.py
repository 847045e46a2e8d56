"""Clients that write to collections while these are changed, and know what of it must be there afterwards."""

from collections.abc import Callable, Iterator
from random import Random
from threading import Event
from typing import Final

from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.random_ddl.ledger import Document, Ledger, Written
from tests.integration.sharded import Documents
from tests.local_cluster import Client

VALUES_OF_A: Final = 40
VALUES_OF_B: Final = 3

REFUSALS: Final = frozenset(
    {
        ErrorCode.NamespaceNotFound,
        ErrorCode.NamespaceExists,
        ErrorCode.DatabaseDropPending,
        ErrorCode.CannotImplicitlyCreateCollection,
        ErrorCode.QueryPlanKilled,
        ErrorCode.WriteConflict,
        ErrorCode.NoSuchTransaction,
        ErrorCode.StaleConfig,
        ErrorCode.StaleDbVersion,
        ErrorCode.MovePrimaryInProgress,
    }
)
"""Errors of a write whose collection is being changed; its outcome is then unknown."""

ORPHAN: Final = "There is either an orphan"
"""In the DuplicateKey of an update that moves a document to a shard which still has an orphan of it, as in MongoDB."""


class RandomWriter:
    """One client, the only writer of its documents.

    Args:
        router: a client of the router that it uses.
        places: the collections it writes to, by their full names.
        ledger: records its writes.
        random: makes all choices.
        identities: numbers for documents, shared by all writers.

    Attributes:
        refused: number of refused writes.
        written: number of acknowledged writes.
    """

    def __init__(
        self, router: Client, places: list[str], ledger: Ledger, random: Random, identities: Iterator[int]
    ) -> None:
        self._router, self._places, self._ledger = router, places, ledger
        self._random, self._identities = random, identities
        self._own: list[Written] = []
        self.refused = self.written = 0

    def run(self, stop: Event) -> None:
        """Write until the event is set."""
        while not stop.wait(0.005):
            self.write()

    def write(self) -> None:
        """Make one random write.

        Raises:
            OperationFailure: it was refused for no good reason.
            AssertionError: a document was not found where it must have been.
        """
        if not self._own or self._random.random() < 0.5:
            self._insert()
            return
        written = self._random.choice(self._own)
        if (before := written.states[-1]) is None or len(written.states) > 1:
            self._own.remove(written)
            return
        kind = self._random.choice(("count", "move", "move", "delete"))
        if kind == "delete":
            self._change(written, before, None)
        else:
            moved = {"a": self._random.randrange(VALUES_OF_A)} if kind == "move" else {}
            self._change(written, before, {**before, **moved, "times": before["times"] + 1})

    def _insert(self) -> None:
        place = self._random.choice(self._places)
        values = {"a": self._random.randrange(VALUES_OF_A), "b": self._random.randrange(VALUES_OF_B)}
        document = {"_id": next(self._identities), **values, "times": 0}
        first, _ = self._ledger.now()
        is_done = self._try(lambda: self._collection(place).insert_one(dict(document)))
        self._ledger.insert(document, place, first, is_certain=is_done is not None)
        self._own.append(self._ledger.documents[document["_id"]])

    def _change(self, written: Written, before: Document, after: Document | None) -> None:
        places = self._ledger.possible_places(written)
        place = self._random.choice(sorted(name for name in places if name is not None) or self._places)
        query = {name: before[name] for name in ("_id", "a", "b")}

        def send() -> int:
            if after is None:
                return self._collection(place).delete_one(query).deleted_count
            changed = {"$set": {"a": after["a"]}, "$inc": {"times": 1}}
            return self._collection(place).update_one(query, changed).matched_count

        number = self._try(send)
        if number is None:
            written.states = [before, after]
        elif number:
            written.states = [after]
        else:
            assert {place} != places | self._ledger.possible_places(written), f"{before} was not in {place}"

    def _collection(self, place: str) -> Documents:
        db, _, name = place.partition(".")
        return self._router[db][name]

    def _try(self, write: Callable[[], object]) -> object | None:
        try:
            result = write()
        except OperationFailure as failure:
            if failure.code not in REFUSALS and ORPHAN not in str(failure):
                raise
            self.refused += 1
            return None
        self.written += 1
        return result
