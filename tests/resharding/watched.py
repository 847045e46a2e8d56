"""A change stream that is open while a collection is resharded: it has every change once, and nothing else."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo.change_stream import ChangeStream

from tests.integration.sharded import Document, Documents

_END: Final = "the end"
_ADDED: Final = {"insert": 1, "delete": -1, "update": 0}


class Watched:
    """The events of a collection to which only `Writers` write.

    Args:
        collection: the collection.
        stream: a stream that was opened before the first write.
    """

    def __init__(self, collection: Documents, stream: ChangeStream[Document]) -> None:
        self._collection = collection
        self._stream = stream

    def check(self, stored: list[Document]) -> None:
        """Check the events up to now, given the documents that there are.

        A document's ``times`` is 0 when it is inserted, and is incremented by each update. An update that moves the
        document to another shard appears as an insertion on one shard, and on the other one as an update and a deletion
        of the same time.
        """
        self._collection.insert_one({"_id": _END, "key": 0, "other": 0})
        present: Counter[object] = Counter()
        times: defaultdict[object, dict[object, int]] = defaultdict(dict)
        for event in self._stream:
            identity, kind, time = event["documentKey"]["_id"], event["operationType"], event["clusterTime"]
            if identity == _END:
                break
            present[identity] += _ADDED[kind]
            if kind == "delete":
                times[identity].pop(("update", time), None)
                continue
            changed = event["fullDocument"] if kind == "insert" else event["updateDescription"]["updatedFields"]
            assert times[identity].setdefault((kind, time), changed["times"]) == changed["times"]
        assert {identity for identity, number in present.items() if number} == {each["_id"] for each in stored}
        assert set(present.values()) <= {0, 1}
        for identity, seen in times.items():
            assert sorted(seen.values()) == list(range(len(seen))), f"changes of {identity}: {seen}"
        for document in stored:
            assert len(times[document["_id"]]) == document["times"] + 1


@contextmanager
def watched(collection: Documents) -> Iterator[Watched]:
    """A change stream on a collection, open during the block."""
    with collection.watch() as stream:
        yield Watched(collection, stream)
