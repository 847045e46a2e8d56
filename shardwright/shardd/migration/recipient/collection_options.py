"""Aligning the options of a collection that the recipient already has with those on the donor.

A shard that owns no chunks of a collection may have missed changes to its options. One that owns chunks has not: there,
different options are a sign of a ``collMod`` that failed halfway, and only the user can say which ones are right.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import LocalCollection, change
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document

logger = get_logger("shardd.migration.recipient")

_MODIFIABLE: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "changeStreamPreAndPostImages": {"enabled": False},
}
"""The options that ``collMod`` can change, with their defaults."""


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
    names = {*local.options, *wanted} - {"uuid"}
    different = sorted(name for name in names if not _is_same(name, local.options, wanted))
    if not different:
        return
    if owns_chunks or not _MODIFIABLE.keys() >= set(different):
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"the options {', '.join(different)} of the collection {namespace} are not those that it has on the donor",
        )
    logger.info("Applying the donor's collection options", namespace=str(namespace), options=different)
    modify = {"collMod": namespace.collection, **{name: _value(name, wanted) for name in different}}
    await change(context.mongod, namespace, {**modify, "writeConcern": MAJORITY})


def _is_same(name: str, options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return encode_document({name: _value(name, options)}) == encode_document({name: _value(name, others)})


def _value(name: str, options: Mapping[str, Any]) -> object:
    return options.get(name, _MODIFIABLE.get(name))
