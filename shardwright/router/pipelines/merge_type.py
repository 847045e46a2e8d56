"""Who merges the results of the shards, in the words of ``explain``.

As the router code of MongoDB 6.0 says, which has an aggregation engine; ``tests/router/test_split_oracle.py`` compares.
Here the mongod of a shard merges what needs one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import decode_document

_FOR_PRIMARY_SHARD: Final = frozenset({"$graphLookup", "$lookup", "$merge", "$out"})
_FOR_ANY_SHARD: Final = frozenset({"$unionWith"})

_SPILLING: Final = frozenset(
    {
        *("$_internalSetWindowFields", "$bucket", "$bucketAuto", "$count", "$fill", "$group", "$sample"),
        *("$setWindowFields", "$sort", "$sortByCount"),
    }
)
"""Stages that use the disk if they may, so that a mongos leaves them to a shard."""


def merge_type(merger_part: Sequence[Stage], *, may_spill: bool) -> str:
    """``mergeType``: ``mongos``, ``primaryShard`` or ``anyShard``.

    Args:
        merger_part: the stages behind those of the shards.
        may_spill: whether the client says ``allowDiskUse``.
    """
    names = set(_names(decode_document(stage.raw) for stage in merger_part))
    if names & _FOR_PRIMARY_SHARD:
        return "primaryShard"
    return "anyShard" if names & _FOR_ANY_SHARD or (may_spill and names & _SPILLING) else "mongos"


def _names(stages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The names of stages, including those in the pipelines of a ``$facet``."""
    for stage in stages:
        for name, specification in stage.items():
            yield name
            if name == "$facet" and isinstance(specification, Mapping):
                for nested in specification.values():
                    yield from _names(nested)
