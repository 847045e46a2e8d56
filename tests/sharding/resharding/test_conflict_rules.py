"""A recipient's storage of documents from several donors, compared with a model, whatever the order of reports."""

from dataclasses import dataclass, field

import bson
import pytest
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.resharding_participation import COLLECTION, KnownDocuments, Write, identity_key

DONORS = ("a", "b", "c")
IDS = (1, 2)


def document(identity: object, donor: str, version: int = 0) -> bytes:
    return bson.encode({"_id": identity, "donor": donor, "version": version})


def identity(value: object) -> bytes:
    return bson.encode({"_id": value})


def donor_of(raw: bytes) -> str:
    name: str = bson.decode(raw)["donor"]
    return name


@dataclass
class Recipient:
    """A recipient's collections, keyed by the bytes of the id as mongod's unique index would be."""

    places: dict[str | None, dict[bytes, bytes]] = field(default_factory=dict)

    def report(
        self, donor: str, gone: list[bytes], documents: list[bytes], *, crash_after: int | None = None
    ) -> list[Write]:
        collection = self.places.get(COLLECTION, {})
        known = KnownDocuments(
            {key: (donor_of(raw), raw) for key, raw in collection.items()},
            {name: dict(self.places.get(name, {})) for name in DONORS},
        )
        known.apply(donor, gone, documents)
        for write in known.writes[:crash_after]:
            self.execute(write)
        if crash_after is not None:
            return known.writes
        assert self.places.get(COLLECTION, {}) == {key: raw for key, (_, raw) in known.collection.items()}
        return known.writes

    def execute(self, write: Write) -> None:
        place, key = self.places.setdefault(write.place, {}), identity_key(write.identity)
        if write.document is None:
            assert place[key].startswith(write.identity[4:-1], 4), "only what is there is deleted, by its very bytes"
            del place[key]
        else:
            assert key not in place or place[key].startswith(write.identity[4:-1], 4), "an _id never changes"
            place[key] = write.document

    @property
    def stashed(self) -> list[bytes]:
        return [raw for name in DONORS for raw in self.places.get(name, {}).values()]

    @property
    def stored(self) -> list[bytes]:
        return list(self.places.get(COLLECTION, {}).values())


events = st.lists(
    st.tuples(st.sampled_from(DONORS), st.sampled_from(IDS), st.sampled_from([None, 1, 1.0, Int64(1)])), max_size=40
)


@given(events)
def test_collection_and_stashes_together_have_what_was_last_reported(
    history: list[tuple[str, int, float | None]],
) -> None:
    recipient, last = Recipient(), dict[tuple[str, int], bytes]()
    for version, (donor, number, kind) in enumerate(history):
        value = number if kind is None else type(kind)(number)
        if kind is None:
            recipient.report(donor, [identity(value)], [])
            last.pop((donor, number), None)
        else:
            last[donor, number] = raw = document(value, donor, version)
            recipient.report(donor, [], [raw])
        assert sorted(recipient.stored + recipient.stashed) == sorted(last.values())
        wanted = {number for _, number in last}
        assert {int(bson.decode(raw)["_id"]) for raw in recipient.stored} == wanted
        assert len(recipient.stashed) == len(last) - len(wanted)


@given(events, st.data())
def test_reports_may_be_repeated_and_batched(history: list[tuple[str, int, float | None]], data: st.DataObject) -> None:
    """A batch has the newest state of each id, deletions first; after a crash it comes again."""
    recipient, last = Recipient(), dict[tuple[str, int], bytes]()
    for version, (donor, number, kind) in enumerate(history):
        last.pop((donor, number), None)
        if kind is not None:
            last[donor, number] = document(number, donor, version)
        batch = data.draw(st.sets(st.sampled_from(IDS))) | {number}
        documents = [last[donor, each] for each in sorted(batch) if (donor, each) in last]
        gone = [identity(each) for each in sorted(batch)]
        for _ in range(data.draw(st.integers(1, 2))):
            recipient.report(donor, gone, documents)
        assert sorted(recipient.stored + recipient.stashed) == sorted(last.values())


@given(events, st.data())
def test_a_batch_of_which_a_part_was_written_is_repeated(
    history: list[tuple[str, int, float | None]], data: st.DataObject
) -> None:
    recipient, last = Recipient(), dict[tuple[str, int], bytes]()
    for version, (donor, number, kind) in enumerate(history):
        last.pop((donor, number), None)
        if kind is not None:
            last[donor, number] = document(number, donor, version)
        documents = [last[donor, each] for each in IDS if (donor, each) in last]
        gone = [identity(each) for each in IDS if (donor, each) not in last]
        crashes = data.draw(st.lists(st.integers(0, 4), max_size=2))
        for crash_after in crashes:
            recipient.report(donor, gone, documents, crash_after=crash_after)
        recipient.report(donor, gone, documents)
        assert sorted(recipient.stored + recipient.stashed) == sorted(last.values())


@pytest.mark.parametrize("arrival_first", [False, True])
def test_a_document_that_changes_donors_is_never_lost(arrival_first: bool) -> None:
    recipient = Recipient()
    recipient.report("a", [], [document(1, "a")])
    moved = document(1, "b", 1)
    if arrival_first:
        recipient.report("b", [], [moved])
        assert recipient.stashed == [moved]
        recipient.report("a", [identity(1)], [])
    else:
        recipient.report("a", [identity(1)], [])
        assert not recipient.stored
        recipient.report("b", [], [moved])
    assert recipient.stored == [moved]
    assert not recipient.stashed


def test_what_another_donor_has_is_not_deleted() -> None:
    recipient = Recipient()
    recipient.report("a", [], [document(1, "a")])
    assert not recipient.report("b", [identity(1)], [])


def test_an_id_of_another_type_replaces_an_equal_one() -> None:
    recipient = Recipient()
    recipient.report("a", [], [document(1, "a")])
    writes = recipient.report("a", [identity(1)], [document(1.0, "a", 1)])
    assert [write.document for write in writes] == [None, document(1.0, "a", 1)]
