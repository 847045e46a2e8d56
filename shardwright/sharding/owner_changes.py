"""How a router and a shard move a document to another shard, because an update changes its shard key.

In MongoDB, the shard of the old key answers WouldChangeOwningShard, with the document before and after the update, and
the router then runs a delete and an insert in a transaction. The shard that executed the update would have no record of
it, so that it could not answer when the client sends it again.

Therefore a shard that lists `MAY_CHANGE_OWNER` among the ``extensions`` of its hello is sent the update itself, as part
of a transaction and with this field. If the result belongs to another shard, it executes the update where the document
is, so that its mongod records the statement, and deletes the result in the same transaction. Its reply is that to
the update, plus::

    changedOwner: {document: <the document to be inserted on the shard that owns its new key>}
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.rawbson import BOOL, OBJECT, Span, element, find, raw_document

MAY_CHANGE_OWNER: Final = b"mayChangeOwner"
MAY_CHANGE_OWNER_ELEMENT: Final = element(MAY_CHANGE_OWNER, BOOL, b"\1")

CHANGED_OWNER: Final = b"changedOwner"


def changed_owner(document: bytes) -> dict[str, Any]:
    """The field of the shard's reply, given the raw document that has left it."""
    return {CHANGED_OWNER.decode(): {"document": raw_document(document)}}


def document_of_other_owner(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """The raw document that a reply asks the router to insert elsewhere, None if it does not.

    Args:
        reply: its body.
        fields: where its elements are.
    """
    span = fields.get(CHANGED_OWNER)
    found = None if span is None or span[0] != OBJECT else find(reply, b"document", span[2])
    return None if found is None else reply[found[2] : found[3]]
