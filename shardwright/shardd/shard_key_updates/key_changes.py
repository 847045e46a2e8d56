"""MongoDB's rules for updates that change a shard key, and the errors for those that break them. Pure."""

from dataclasses import dataclass
from typing import Final

from shardwright.shardd.shard_key_updates.preview import Preview
from shardwright.sharding.owner_changes import OwnerChange
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

FULL_KEY_MISSING: Final = 31025
"""MongoDB's error code for changing a shard key with a query that does not contain the whole key."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """An update about to be executed.

    Args:
        table: the collection's routing table.
        shard: id of this shard.
        query: the query of the update.
        is_multi: whether it may update several documents.
        is_retryable: whether it has a transaction number.
    """

    table: RoutingTable
    shard: str
    query: bytes
    is_multi: bool
    is_retryable: bool

    def check(self, preview: Preview) -> None:
        """Refuse what MongoDB refuses.

        Raises:
            CommandError: NotSingleValueField, the new key contains an array; 31025; InvalidOptions, a multi-update;
                IllegalOperation, it has no transaction number; WouldChangeOwningShard, another shard owns the new key.
        """
        if preview.after is None:
            return
        new_key = self._key_of(preview.after)
        if preview.before is None:
            self._check_inserted(preview.after, new_key)
        elif new_key != self.table.key_pattern.key_bytes_of_document(preview.before):
            self._check_changed(preview.before, preview.after, new_key)

    def check_change_allowed(self) -> None:
        """Refuse a change of the shard key, whatever the new key is, unless MongoDB allows it.

        Raises:
            CommandError: 31025, InvalidOptions, IllegalOperation.
        """
        if exact_shard_key(self.query, self.table.key_pattern) is None:
            raise CommandError(
                FULL_KEY_MISSING, "Shard key update is not allowed without specifying the full shard key in the query"
            )
        if self.is_multi:
            raise CommandError(
                ErrorCode.InvalidOptions, "Multi-update operations are not allowed when updating the shard key field."
            )
        if not self.is_retryable:
            raise CommandError(
                ErrorCode.IllegalOperation,
                "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.",
            )

    def _check_changed(self, before: bytes, after: bytes, new_key: bytes) -> None:
        self.check_change_allowed()
        if self.table.shard_for_key(new_key) != self.shard:
            raise _would_change_owning_shard(OwnerChange(before, after, is_upsert=False))

    def _check_inserted(self, after: bytes, new_key: bytes) -> None:
        if self.table.shard_for_key(new_key) == self.shard:
            return
        if not self.is_retryable:
            raise CommandError(
                ErrorCode.IllegalOperation,
                "The upsert document could not be inserted onto the shard targeted by the query, since its shard key "
                "belongs on a different shard. Cross-shard upserts are only allowed when running in a transaction or "
                "with retryWrites: true.",
            )
        raise _would_change_owning_shard(OwnerChange(self.query, after, is_upsert=True))

    def _key_of(self, document: bytes) -> bytes:
        try:
            return self.table.key_pattern.key_bytes_of_document(document)
        except CommandError as error:
            if error.code != ErrorCode.ShardKeyNotFound:
                raise
            raise CommandError(
                ErrorCode.NotSingleValueField,
                "After applying the update, a field of the shard key was found to be an array or array descendant.",
            ) from error


def only_one_may_leave() -> CommandError:
    """The error of an update of one document that leaves the shard, if it is not the only statement of its command."""
    return CommandError(
        ErrorCode.InvalidOptions,
        "Document shard key value updates that cause the doc to move shards must be sent with write batch of size 1",
    )


def _would_change_owning_shard(change: OwnerChange) -> CommandError:
    return CommandError(
        ErrorCode.WouldChangeOwningShard,
        "The document we are inserting belongs on a different shard"
        if change.is_upsert
        else "This update would cause the doc to change owning shards",
        extra=change.to_fields(),
    )
