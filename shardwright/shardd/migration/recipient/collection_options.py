"""Aligning the options of a collection that the recipient already has with those on the donor.

A shard that owns no chunks of a collection may have missed changes to its options. One that owns chunks has not: there,
different options are a sign of a ``collMod`` that failed halfway, and only the user can say which ones are right.
"""

from collections.abc import Mapping
from typing import Any

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import LocalCollection, change
from shardwright.shardd.local_mongod.option_values import MODIFIABLE, different_options, option_value
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.migration.recipient")


async def align_options(
    context: ShardContext, namespace: Namespace, local: LocalCollection, wanted: Mapping[str, Any], *, owns_chunks: bool
) -> None:
    """Change the options of a local collection to those on the donor.

    Args:
        context: this shard daemon's context.
        namespace: the collection.
        local: the local collection.
        wanted: the options on the donor.
        owns_chunks: whether this shard owns chunks of it.

    Raises:
        CommandError: InvalidOptions, they differ, and cannot or must not be changed.
    """
    different = different_options(local.options, wanted)
    if not different:
        return
    if owns_chunks or not MODIFIABLE.keys() >= set(different):
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"the options {', '.join(different)} of the collection {namespace} are not those that it has on the donor",
        )
    logger.info("Applying the donor's collection options", namespace=str(namespace), options=different)
    modify = {"collMod": namespace.collection, **{name: option_value(name, wanted) for name in different}}
    await change(context.mongod, namespace, {**modify, "writeConcern": MAJORITY})
