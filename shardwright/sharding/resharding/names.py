"""The collections that exist only while a collection is being resharded."""

from typing import Final
from uuid import UUID

from shardwright.sharding.namespace import Namespace

_TEMPORARY_PREFIX: Final = "system.resharding."
_STASH_PREFIX: Final = "localReshardingConflictStash."


def temporary_namespace(namespace: Namespace, source_uuid: UUID) -> Namespace:
    """The collection in which recipients assemble their documents, renamed to ``namespace`` by the commit.

    Args:
        namespace: the collection that is resharded.
        source_uuid: its UUID before.
    """
    return Namespace(namespace.db, f"{_TEMPORARY_PREFIX}{source_uuid}")


def is_temporary(namespace: Namespace) -> bool:
    """Whether it is such a collection."""
    return namespace.collection.startswith(_TEMPORARY_PREFIX)


def stash_namespace(source_uuid: UUID, donor: str) -> Namespace:
    """A recipient's collection for the documents of one donor whose ``_id`` another donor's document has.

    Args:
        source_uuid: the UUID of the collection before.
        donor: id of the donor.
    """
    return Namespace("config", f"{_STASH_PREFIX}{source_uuid}.{donor}")
