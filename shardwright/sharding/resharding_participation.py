"""A resharding operation as donors and recipients see it: its states, their documents, and the rules for conflicts.

**Ownership** (`Participation`). Chunks do not move while a collection is resharded, so the document alone determines
its donor and its recipient.

**States.** The states of the three parties have MongoDB's names and order. The coordinator on the config servers leads.
It enters its next state when every donor or every recipient has reported the state that the present one requires.

**Conflict rules** (`KnownDocuments`). A recipient receives documents from several donors. ``_id`` is unique on each
shard, not in a sharded collection. While an update of the present shard key moves a document from donor to donor, a
recipient may see the arrival first. Then it has two documents with the same ``_id``. It keeps one of them in the
collection and the other one in the *conflict stash* of its donor.

A donor reports the state of an ``_id``: the document that it hands over, or that it has none. States of one donor come
in the order of time. One may be repeated, or left out if a later one follows. The order across donors does not matter:

* A document goes to its donor's stash if the stash already has the ``_id``, or if the collection has it from another
  donor. Otherwise it goes to the collection.
* An ``_id`` that is gone is deleted from its donor's stash if the stash has it. Otherwise it is deleted from the
  collection if it came from this donor, and a document with this ``_id`` from another donor's stash takes its place.

So collection and stashes together always have exactly the last reported documents, and the stashes are empty unless two
donors have the same ``_id``. Two permanent documents with the same ``_id`` cannot be resharded to one shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.rawbson import encode_document, raw_document

_TEMPORARY_PREFIX: Final = "system.resharding."
_STASH_PREFIX: Final = "localReshardingConflictStash."

COLLECTION: Final = None
"""Place of a write to the collection itself, rather than to the stash of a donor."""


class CoordinatorState(StrEnum):
    """State of the whole operation."""

    INITIALIZING = "initializing"
    PREPARING_TO_DONATE = "preparing-to-donate"
    CLONING = "cloning"
    APPLYING = "applying"
    BLOCKING_WRITES = "blocking-writes"
    ABORTING = "aborting"
    COMMITTING = "committing"


class DonorState(StrEnum):
    """State of a shard that gives documents."""

    PREPARING_TO_DONATE = "preparing-to-donate"
    DONATING_INITIAL_DATA = "donating-initial-data"
    DONATING_OPLOG_ENTRIES = "donating-oplog-entries"
    PREPARING_TO_BLOCK_WRITES = "preparing-to-block-writes"
    BLOCKING_WRITES = "blocking-writes"
    ERROR = "error"
    DONE = "done"


class RecipientState(StrEnum):
    """State of a shard that receives documents."""

    AWAITING_FETCH_TIMESTAMP = "awaiting-fetch-timestamp"
    CREATING_COLLECTION = "creating-collection"
    CLONING = "cloning"
    APPLYING = "applying"
    STRICT_CONSISTENCY = "strict-consistency"
    ERROR = "error"
    DONE = "done"


_FORWARD: Final = (
    CoordinatorState.INITIALIZING,
    CoordinatorState.PREPARING_TO_DONATE,
    CoordinatorState.CLONING,
    CoordinatorState.APPLYING,
    CoordinatorState.BLOCKING_WRITES,
    CoordinatorState.COMMITTING,
)

_RECIPIENT_ORDER: Final = (
    RecipientState.AWAITING_FETCH_TIMESTAMP,
    RecipientState.CREATING_COLLECTION,
    RecipientState.CLONING,
    RecipientState.APPLYING,
    RecipientState.STRICT_CONSISTENCY,
    RecipientState.DONE,
)

DECIDED: Final = frozenset({CoordinatorState.COMMITTING, CoordinatorState.ABORTING})
"""States that the operation does not leave for the opposite outcome."""


def may_follow(present: CoordinatorState, following: CoordinatorState) -> bool:
    """Whether the coordinator may change to a state: to the next one, or, before the decision, to abort."""
    if present in DECIDED:
        return False
    if following is CoordinatorState.ABORTING:
        return True
    return _FORWARD[_FORWARD.index(present) + 1] is following


def has_reached(state: RecipientState, wanted: RecipientState) -> bool:
    """Whether a recipient has reached a state; one that has failed has reached only ``error``."""
    if RecipientState.ERROR in (state, wanted):
        return state is wanted
    return _RECIPIENT_ORDER.index(state) >= _RECIPIENT_ORDER.index(wanted)


def temporary_namespace(namespace: Namespace, source_uuid: UUID) -> Namespace:
    """Return the collection in which recipients assemble their documents; the commit renames it to ``namespace``.

    ``source_uuid`` is the UUID of ``namespace`` before.
    """
    return Namespace(namespace.db, f"{_TEMPORARY_PREFIX}{source_uuid}")


def is_temporary(namespace: Namespace) -> bool:
    """Whether a namespace is such a temporary collection."""
    return namespace.collection.startswith(_TEMPORARY_PREFIX)


def stash_namespace(source_uuid: UUID, donor: str) -> Namespace:
    """Return a recipient's conflict stash for one donor; ``source_uuid`` is the UUID of the collection before."""
    return Namespace("config", f"{_STASH_PREFIX}{source_uuid}.{donor}")


class Ownership:
    """The owners of documents by the routing tables of the present and of the new shard key.

    An array in a shard key raises ShardKeyNotFound.
    """

    def __init__(self, source: RoutingTable, target: RoutingTable) -> None:
        self._source = source
        self._target = target

    def donor_of(self, document: bytes) -> str:
        """Return the shard that owns a document now; a copy on any other shard is an orphan."""
        return self._source.shard_for_key(self._source.key_pattern.key_bytes_of_document(document))

    def recipient_of(self, document: bytes) -> str:
        """Return the shard that will own a document."""
        return self._target.shard_for_key(self._target.key_pattern.key_bytes_of_document(document))

    def source_key_of(self, document: bytes) -> bytes:
        """Return the present shard key of a document, as a raw document."""
        return self._source.key_pattern.extract_from_document(document)

    def handed_over(self, documents: Sequence[bytes], donor: str, recipient: str) -> list[bytes]:
        """Select the documents that ``donor`` owns now and ``recipient`` will own."""
        owned: Iterable[bytes] = documents
        if self._source.shards != {donor}:  # otherwise there are no orphans, whatever the keys
            owned = (each for each in documents if self.donor_of(each) == donor)
        key_of, shard_for_key = self._target.key_pattern.key_bytes_of_document, self._target.shard_for_key
        return [each for each in owned if shard_for_key(key_of(each)) == recipient]


@dataclass(frozen=True, slots=True)
class Participation:
    """One resharding operation, in the form that all its participants have.

    Attributes:
        id: the operation, whose id becomes the UUID of the collection.
        source_uuid: the collection's UUID until the commit.
        donors: ids of the shards that own chunks by the present shard key.
        recipients: ids of the shards that will own chunks, and of the database's primary shard.
    """

    id: UUID
    namespace: Namespace
    source_uuid: UUID
    key: ShardKeyPattern
    donors: tuple[str, ...]
    recipients: tuple[str, ...]

    @property
    def temporary(self) -> Namespace:
        """Collection in which recipients assemble their documents."""
        return temporary_namespace(self.namespace, self.source_uuid)

    @property
    def shards(self) -> list[str]:
        """All participants, each once."""
        return sorted({*self.donors, *self.recipients})

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Participation":
        """Read the document in which it is sent and persisted; other fields are ignored.

        Raises NoSuchKey, TypeMismatch or BadValue.
        """
        return cls(
            id=required_uuid(document, "_id"),
            namespace=Namespace.parse(required(document, "ns", str)),
            source_uuid=required_uuid(document, "ui"),
            key=ShardKeyPattern.from_bson(encode_document(required(document, "reshardingKey", Mapping))),
            donors=_shard_ids(document, "donorShards"),
            recipients=_shard_ids(document, "recipientShards"),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document in which it is sent and persisted, with MongoDB's names."""
        return {
            "_id": Binary.from_uuid(self.id),
            "ns": str(self.namespace),
            "ui": Binary.from_uuid(self.source_uuid),
            "tempNs": str(self.temporary),
            "reshardingKey": raw_document(self.key.document),
            "donorShards": [{"shardId": each} for each in self.donors],
            "recipientShards": [{"shardId": each} for each in self.recipients],
        }


def _shard_ids(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(required(entry, "shardId", str) for entry in required(document, name, list))


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
