"""Protocol between router and shard for moving a document whose shard key an update changes.

In MongoDB, the shard of the old key answers WouldChangeOwningShard, with the document before and after the update
(`OwnerChange`). The router then runs a delete and an insert in a transaction. The shard that executed the update would
have no record of it, so it could not answer when the client retries it.

Therefore the router sends the update itself, as part of a transaction and with this field, to a shard that lists
`MAY_CHANGE_OWNER` among the ``extensions`` of its hello. If the result belongs to another shard, this shard still
executes the update, so that its mongod records the statement. It deletes the result in the same transaction. It replies
as to an update, plus::

    changedOwner: {document: <the document to be inserted on the shard that owns its new key>}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from shardwright.wire.rawbson import BOOL, OBJECT, Span, decode_value, element, find, raw_document

MAY_CHANGE_OWNER: Final = b"mayChangeOwner"
MAY_CHANGE_OWNER_ELEMENT: Final = element(MAY_CHANGE_OWNER, BOOL, b"\1")

CHANGED_OWNER: Final = b"changedOwner"

_BEFORE: Final = b"preImage"
_AFTER: Final = b"postImage"
_IS_UPSERT: Final = b"shouldUpsert"


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """The content of the error WouldChangeOwningShard for an update that was not executed.

    ``before`` and ``after`` are raw documents. If ``is_upsert``, there was no document, and ``before`` is the query.
    """

    before: bytes
    after: bytes
    is_upsert: bool

    @classmethod
    def read(cls, reply: bytes, fields: Mapping[bytes, Span]) -> Self | None:
        """Read the change in the body of a failed reply; None if it has none."""
        before, after, is_upsert = (fields.get(name) for name in (_BEFORE, _AFTER, _IS_UPSERT))
        if before is None or after is None or before[0] != OBJECT or after[0] != OBJECT:
            return None
        return cls(
            reply[before[2] : before[3]],
            reply[after[2] : after[3]],
            is_upsert is not None and bool(decode_value(reply, is_upsert)),
        )

    def to_fields(self) -> dict[str, Any]:
        """Build the fields of the error besides its code and its message."""
        return {
            _BEFORE.decode(): raw_document(self.before),
            _AFTER.decode(): raw_document(self.after),
            _IS_UPSERT.decode(): self.is_upsert,
        }


def changed_owner(document: bytes) -> dict[str, Any]:
    """Build the field of the shard's reply, given the raw document that has left it."""
    return {CHANGED_OWNER.decode(): {"document": raw_document(document)}}


def document_of_other_owner(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """Return the raw document that a reply requires the router to insert elsewhere; None if there is none."""
    span = fields.get(CHANGED_OWNER)
    found = None if span is None or span[0] != OBJECT else find(reply, b"document", span[2])
    return None if found is None else reply[found[2] : found[3]]
