"""Bounds of chunks that are nested deep or large, on a genuine cluster: ours may refuse whatever it refuses."""

from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import SHARDS
from tests.integration.crud.test_deep_keys import nested
from tests.local_cluster import Client


def test_moves_of_deep_bounds_are_refused_from_the_same_depth(
    client: Client, database: Database[dict[str, object]]
) -> None:
    """As `tests.integration.crud.test_deep_keys` has it of ours."""
    for levels in (177, 178):
        collection = database[f"deep_{levels}"]
        client.admin.command("shardCollection", collection.full_name, key={"key": 1})
        collection.insert_many({"_id": number, "key": nested(levels, number)} for number in range(10))
        client.admin.command("split", collection.full_name, middle={"key": nested(levels, 5)})
        move: dict[str, Any] = {"moveChunk": collection.full_name, "find": {"key": nested(levels, 7)}, "to": SHARDS[1]}
        if levels == 177:
            client.admin.command(move)
        else:
            with pytest.raises(OperationFailure) as failure:
                client.admin.command(move)
            assert failure.value.code == ErrorCode.Overflow
        assert collection.count_documents({}) == 10


@pytest.mark.exhaustive
def test_splits_at_large_bounds_are_refused_before_ours_would_be(
    client: Client, database: Database[dict[str, object]]
) -> None:
    """A genuine config server has the former bounds and the new one twice in one command.

    Ours takes chunks whose upper bound, and twice the lower one, have less than 16 MB.
    """
    collection = database["large"]
    client.admin.command("shardCollection", collection.full_name, key={"key": 1})
    lower, middle = {"key": "a" * 3_900_000}, {"key": "m" * 4_700_000}
    client.admin.command("split", collection.full_name, middle=lower)
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("split", collection.full_name, middle=middle)
    assert failure.value.code == ErrorCode.BSONObjectTooLarge
    collection.insert_one({"key": "b"})
    assert collection.count_documents({}) == 1
