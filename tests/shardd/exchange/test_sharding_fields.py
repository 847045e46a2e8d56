"""Removing versions from requests."""

from typing import Any

import bson
import pytest

from shardwright.shardd.exchange.term_exchange import without_sharding_fields
from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, encode_sequence, op_msg, with_checksum
from shardwright.wire.request import Request

VERSION = UNSHARDED.to_document()
DATABASE_VERSION = {"lastMod": 1}


def cut(fields: dict[str, Any], sections: bytes = b"") -> OpMsg:
    frame = op_msg(bson.encode({"find": "c", **fields}), request_id=5, sections=sections)
    return OpMsg(without_sharding_fields(Request(OpMsg(frame))))


@pytest.mark.parametrize(
    "fields",
    [
        {"$db": "d", "shardVersion": VERSION},
        {"$db": "d", "databaseVersion": DATABASE_VERSION},
        {"$db": "d", "shardVersion": VERSION, "databaseVersion": DATABASE_VERSION},
        {"$db": "d", "databaseVersion": DATABASE_VERSION, "shardVersion": VERSION},
        {"shardVersion": VERSION, "$db": "d"},
        {"shardVersion": VERSION, "$db": "d", "databaseVersion": DATABASE_VERSION},
        {"databaseVersion": DATABASE_VERSION, "shardVersion": VERSION, "$db": "d"},
    ],
)
def test_both_fields_are_removed_wherever_they_are(fields: dict[str, Any]) -> None:
    message = cut(fields)
    assert bson.decode(message.body) == {"find": "c", "$db": "d"}
    assert message.request_id == 5


def test_document_sequences_are_kept() -> None:
    documents = [bson.encode({"_id": number}) for number in range(3)]
    message = cut({"$db": "d", "shardVersion": VERSION}, encode_sequence(b"documents", documents))
    assert message.sequences[0].documents == documents


def test_a_checksum_that_would_be_wrong_is_removed() -> None:
    frame = with_checksum(op_msg(bson.encode({"find": "c", "$db": "d", "shardVersion": VERSION}), request_id=5))
    message = OpMsg(without_sharding_fields(Request(OpMsg(frame))))
    assert not message.flags & CHECKSUM_PRESENT
    assert bson.decode(message.body) == {"find": "c", "$db": "d"}
