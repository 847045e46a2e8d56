"""The request to receive a database, and its conversion to a chunk migration's request for the shared parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.session_history.database_history import ALL_IDS, ID_PATTERN
from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace


@dataclass(frozen=True, slots=True)
class ReceiveDatabase:
    """A request to receive a database.

    Attributes:
        move_id: identifies the donor's attempt.
        donor: id of the donor.
        recipient: id of this shard.
    """

    db: str
    move_id: UUID
    donor: str
    recipient: str

    @classmethod
    def from_document(cls, db: str, document: Mapping[str, object], recipient: str) -> "ReceiveDatabase":
        """Read the arguments of a command, or raise NoSuchKey or TypeMismatch."""
        return cls(db, required_uuid(document, "moveId"), required(document, "fromShard", str), recipient)

    @property
    def session_id(self) -> str:
        """The session id of the requests to the donor."""
        return f"{self.db}_{self.move_id}"

    def of_collection(self, namespace: Namespace, uuid: UUID | None = None) -> ReceiveRequest:
        """Return the request to receive a collection as if it were one chunk with ``_id`` as its shard key."""
        return ReceiveRequest(
            migration_id=self.move_id,
            session_id=self.session_id,
            namespace=namespace,
            collection_uuid=uuid,
            pattern=ID_PATTERN,
            range=ALL_IDS,
            donor=self.donor,
            donor_connection_string="",
            recipient=self.recipient,
            lsid={},
            txn_number=0,
            secondary_throttle=False,
            write_concern={},
        )
