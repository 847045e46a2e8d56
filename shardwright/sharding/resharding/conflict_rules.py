"""The writes of a recipient for the documents that it receives from several donors.

``_id`` is unique on each shard, not in a sharded collection. While an update of the present shard key moves a document
from donor to donor, a recipient may see the arrival first. Then it has two documents with the same ``_id``. It keeps
one of them in the collection and the other one in the *conflict stash* of its donor.

A donor reports the state of an ``_id``: the document that it hands over, or that it has none. States of one donor come
in the order of time. One may be repeated, or left out if a later one follows. The order across donors does not matter:

* A document goes to its donor's stash if the stash already has the ``_id``, or if the collection has it from another
  donor. Otherwise it goes to the collection.
* An ``_id`` that is gone is deleted from its donor's stash if the stash has it. Otherwise it is deleted from the
  collection if it came from this donor, and a document with this ``_id`` from another donor's stash takes its place.

So collection and stashes together always have exactly the last reported documents, and the stashes are empty unless two
donors have the same ``_id``. Two permanent documents with the same ``_id`` cannot be resharded to one shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from shardwright.sharding.key_order import encode_key
from shardwright.wire import rawbson

COLLECTION: Final = None
"""Place of a write to the collection itself, rather than to the stash of a donor."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a recipient.

    Attributes:
        place: `COLLECTION`, or the donor to whose stash it goes.
        identity: the raw ``{_id}``, with the bytes that are stored, or are to be stored.
    """

    place: str | None
    identity: bytes
    document: bytes | None


@dataclass(slots=True)
class KnownDocuments:
    """A recipient's documents under some ids, by `identity_key`, and its pending writes, in order.

    ``collection`` has each document with its donor, ``stashes`` has them by donor.
    """

    collection: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    stashes: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)

    def heal(self) -> None:
        """Delete from a stash documents that were moved to the collection before a crash."""
        for key, (donor, _) in self.collection.items():
            left = self.stashes.get(donor, {}).pop(key, None)
            if left is not None:
                self.writes.append(Write(donor, identity_of(left), None))

    def apply(self, donor: str, gone: Sequence[bytes], documents: Sequence[bytes]) -> None:
        """Apply the states that a donor reports, adding to ``writes``.

        The writes may be executed one after the other. If only some of them are, applying the same states again to the
        result leads to the same end. ``gone`` are raw ``{_id}`` under which the donor hands over nothing; they come
        before ``documents``.
        """
        self.heal()
        for identity in gone:
            self._remove(donor, identity_key(identity))
        for document in documents:
            self._store(donor, document)

    def _store(self, donor: str, document: bytes) -> None:
        key = identity_key(document)
        stash = self.stashes.setdefault(donor, {})
        found = self.collection.get(key)
        if key in stash or (found is not None and found[0] != donor):
            self._replace(donor, stash.get(key), document)
            stash[key] = document
        else:
            self._replace(COLLECTION, None if found is None else found[1], document)
            self.collection[key] = (donor, document)

    def _remove(self, donor: str, key: bytes) -> None:
        stashed = self.stashes.get(donor, {}).pop(key, None)
        if stashed is not None:
            self.writes.append(Write(donor, identity_of(stashed), None))
            return
        found = self.collection.get(key)
        if found is None or found[0] != donor:
            return
        del self.collection[key]
        self.writes.append(Write(COLLECTION, identity_of(found[1]), None))
        self._promote(key)

    def _promote(self, key: bytes) -> None:
        """Move a stashed document to the collection, where its ``_id`` has become free."""
        for donor in sorted(self.stashes):
            document = self.stashes[donor].pop(key, None)
            if document is not None:
                # In this order, so that a crash in between leaves it twice rather than not at all.
                self.writes.append(Write(COLLECTION, identity_of(document), document))
                self.writes.append(Write(donor, identity_of(document), None))
                self.collection[key] = (donor, document)
                return

    def _replace(self, place: str | None, stored: bytes | None, document: bytes) -> None:
        """Store a document in place of the present one.

        An ``_id`` cannot be changed, not even from ``1`` to ``1.0``; then the former document is deleted first.
        """
        identity = identity_of(document)
        if stored is not None and identity_of(stored) != identity:
            self.writes.append(Write(place, identity_of(stored), None))
        self.writes.append(Write(place, identity, document))


def identity_of(document: bytes) -> bytes:
    """Return the raw ``{_id}`` of a raw document."""
    span = rawbson.find(document, b"_id")
    assert span is not None, "every document has an _id"
    return rawbson.from_elements(document[span[1] : span[3]])


def identity_key(document: bytes) -> bytes:
    """Return bytes that are the same for ids that MongoDB treats as equal, such as ``1`` and ``1.0``."""
    return encode_key(identity_of(document))
