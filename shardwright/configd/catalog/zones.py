"""Zone ranges of a collection, and the zones of a renamed collection.

The zones of a renamed collection follow it one by one, because there may be any number. Until all have followed, the
collection's entry has a mark, and migrations remain forbidden.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.transactions import Transaction
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.tag_entry import TagEntry
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

FIELDS_DIFFER = 16634
"""MongoDB's code for ranges of one collection whose bounds have different fields."""


@dataclass(frozen=True, slots=True)
class ZoneBounds:
    """A range of a collection, as documents and as the keys for comparing them."""

    min: bytes
    max: bytes

    @classmethod
    def parse(cls, low: bytes, high: bytes) -> "ZoneBounds":
        """Parse a range from its bounds.

        Raises:
            CommandError: FailedToParse, the range is empty; 16634, the bounds have different fields.
        """
        if encode_key(low) >= encode_key(high):
            raise CommandError(
                ErrorCode.FailedToParse, f"min: {document_text(low)} should be less than max: {document_text(high)}"
            )
        return cls(low, high)

    def extended_to(self, pattern: ShardKeyPattern, namespace: Namespace) -> "ZoneBounds":
        """Extend the bounds to full shard keys; raises ShardKeyNotFound if their fields are not a prefix of the key."""
        return ZoneBounds(_extend(pattern, self.min, "min", namespace), _extend(pattern, self.max, "max", namespace))

    def check_hashes(self, pattern: ShardKeyPattern) -> None:
        """Refuse full bounds without a hash in a hashed field with InvalidOptions, because no chunk can begin there."""
        if not (pattern.has_hashes(self.min) and pattern.has_hashes(self.max)):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"there exists a field in the range {document_text(self.min)} -->> {document_text(self.max)} not of"
                " type NumberLong, MinKey, or MaxKey which corresponds to a hashed field in the shard key pattern"
                f" {document_text(pattern.document)}",
            )

    def check_against(self, others: Iterable[TagEntry], zone: str) -> None:
        """Refuse a range that overlaps another range of the collection; an identical range may get another zone.

        Raises:
            CommandError: RangeOverlapConflict; 16634, the other range's bounds have different fields.
        """
        low, high = encode_key(self.min), encode_key(self.max)
        for other in others:
            other_min, other_max = rawbson.encode_document(other.min), rawbson.encode_document(other.max)
            self._check_same_fields(other_max)
            other_low, other_high = encode_key(other_min), encode_key(other_max)
            if (other_low, other_high) != (low, high) and other_low < high and low < other_high:
                raise CommandError(
                    ErrorCode.RangeOverlapConflict,
                    f"Zone range: {document_text(self.min)} -->> {document_text(self.max)}  on  {zone} is overlapping"
                    f" with existing: {document_text(other_min)} -->> {document_text(other_max)}  on  {other.tag}",
                )

    def _check_same_fields(self, other: bytes) -> None:
        if _names(other) != _names(self.min):
            key_pattern = ", ".join(f"{name.decode(errors='replace')}: 1" for name in _names(self.min))
            raise CommandError(
                FIELDS_DIFFER,
                f"field names of bound {document_text(other)} do not match those of keyPattern {{ {key_pattern} }}",
            )


def _extend(pattern: ShardKeyPattern, bound: bytes, side: str, namespace: Namespace) -> bytes:
    try:
        return pattern.extend_range_bound(bound)
    except CommandError as error:
        raise CommandError(
            ErrorCode.ShardKeyNotFound,
            f"{side}: {document_text(bound)} is not a prefix of the shard key {pattern} of ns: {namespace}",
        ) from error


def _names(document: bytes) -> list[bytes]:
    return [name for name, _ in rawbson.spans(document)]


RENAMED_FROM: Final = "zonesBeingRenamed"
"""Our own field of the entry, with the former name."""


async def marked(transaction: Transaction, entry: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return an entry under its new name. It forbids migrations if zones have to follow from the former name."""
    kept = {name: value for name, value in entry.items() if name != "allowMigrations"}
    if not await transaction.find("tags", {"ns": source}, limit=1):
        return kept
    return {**kept, "allowMigrations": False, RENAMED_FROM: source}


async def finish_renames(catalog: Catalog, namespace: str) -> None:
    """Complete the renames from and to a name, so that its collection has exactly its own zones.

    Every change of zones has to call this first. Errors as `Catalog`.
    """
    marked_entries = {"$or": [{"_id": namespace, RENAMED_FROM: {"$exists": True}}, {RENAMED_FROM: namespace}]}
    for entry in await catalog.find("collections", marked_entries):
        await _rename_zones(catalog, entry[RENAMED_FROM], entry["_id"])


async def _rename_zones(catalog: Catalog, source: str, target: str) -> None:
    await catalog.update_many("tags", {"ns": source}, {"$set": {"ns": target}})

    async def remove_mark(transaction: Transaction) -> None:
        present = await transaction.find_one("collections", {"_id": target})
        if present is not None:
            kept = {name: value for name, value in present.items() if name not in ("allowMigrations", RENAMED_FROM)}
            transaction.put("collections", [kept])

    await catalog.transaction(remove_mark)
