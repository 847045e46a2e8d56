"""Which donor a document comes from, and which recipient it goes to.

Chunks do not move while a collection is resharded, so both follow from the document alone.
"""

from collections.abc import Iterable, Sequence

from shardwright.sharding.routing_table import RoutingTable


class Ownership:
    """The owners of documents before and after.

    Args:
        source: the routing table by the present shard key.
        target: the one by the new shard key.
    """

    def __init__(self, source: RoutingTable, target: RoutingTable) -> None:
        self._source = source
        self._target = target

    def donor_of(self, document: bytes) -> str:
        """The shard that owns a document now; a copy on any other shard is an orphan.

        Raises:
            CommandError: ShardKeyNotFound, it has an array in its shard key.
        """
        return self._source.shard_for_key(self._source.key_pattern.key_bytes_of_document(document))

    def recipient_of(self, document: bytes) -> str:
        """The shard that will own a document.

        Raises:
            CommandError: ShardKeyNotFound, it has an array in its new shard key.
        """
        return self._target.shard_for_key(self._target.key_pattern.key_bytes_of_document(document))

    def source_key_of(self, document: bytes) -> bytes:
        """The present shard key of a document, as a raw document.

        Raises:
            CommandError: as for `donor_of`.
        """
        return self._source.key_pattern.extract_from_document(document)

    def handed_over(self, documents: Sequence[bytes], donor: str, recipient: str) -> list[bytes]:
        """Those of a shard's documents that it owns and that the recipient will own.

        Raises:
            CommandError: ShardKeyNotFound, one of them has an array in its new shard key.
        """
        owned: Iterable[bytes] = documents
        if self._source.shards != {donor}:  # otherwise there are no orphans, whatever the keys
            owned = (each for each in documents if self.donor_of(each) == donor)
        key_of, shard_for_key = self._target.key_pattern.key_bytes_of_document, self._target.shard_for_key
        return [each for each in owned if shard_for_key(key_of(each)) == recipient]
