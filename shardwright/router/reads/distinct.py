"""Merging the values that several shards return for ``distinct``: raw arrays in, a raw array out."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.sharding.key_order import encode_value
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import ARRAY, OBJECT, array_of_documents, element, encode_elements, from_elements, spans

DISTINCT_TOO_BIG: Final = 17217


def merge_values(arrays: Iterable[bytes]) -> bytes:
    """All values of some arrays, each once and in order, compared without a collation.

    Raises:
        CommandError: 17217, the result is larger than a document may be.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    for array in arrays:
        for _, span in spans(array):
            key = encode_value(array, span)
            if key not in found:
                found[key] = (span[0], array[span[2] : span[3]])
    ordered = [found[key] for key in sorted(found)]
    merged = from_elements(
        b"".join([element(b"%d" % position, kind, value) for position, (kind, value) in enumerate(ordered)])
    )
    if len(merged) > BSON_OBJECT_BYTES_MAX:
        raise CommandError(DISTINCT_TOO_BIG, "distinct too big, 16mb cap")
    return merged


def merging_aggregate(arrays: Iterable[bytes], collation: Mapping[str, Any], db: str) -> bytes:
    """The aggregation by which a mongod, which can collate, merges the values for us.

    Its only result, absent if there are no values, contains the array ``values``.

    Args:
        arrays: the values.
        collation: how they compare.
        db: the database to send it to.
    """
    documents = [
        from_elements(element(b"value", OBJECT, from_elements(element(b"$literal", span[0], array[span[2] : span[3]]))))
        for array in arrays
        for _, span in spans(array)
    ]
    stages = [
        from_elements(element(b"$documents", ARRAY, array_of_documents(documents))),
        from_elements(encode_elements({"$group": {"_id": "$value"}})),
        from_elements(encode_elements({"$sort": {"_id": 1}})),
        from_elements(encode_elements({"$group": {"_id": None, "values": {"$push": "$_id"}}})),
    ]
    return from_elements(
        encode_elements({"aggregate": 1})
        + element(b"pipeline", ARRAY, array_of_documents(stages))
        + encode_elements({"cursor": {}, "collation": dict(collation), "$db": db})
    )
