"""Requests for shards: the client's bytes, with the router's fields at the end of the body."""

import struct
from typing import Any

import bson
import pytest
from bson.int64 import Int64

from shardwright.router.transactions.internal_transaction import WriteSessions
from shardwright.router.writes.batch import WriteKind
from shardwright.router.writes.targeted_batch import ShardBatch, message_with_versions, shard_message
from shardwright.sharding.versions import UNSHARDED, shard_version_element
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, encode_sequence, op_msg, with_checksum
from shardwright.wire.request import Request
from tests.router.writes.builders import batch, request

VERSION = shard_version_element(UNSHARDED)
SESSION = {"id": bson.Binary(bytes(16), 4)}
DOCUMENTS = [{"_id": n, "k": n} for n in range(4)]


def part(*positions: int) -> ShardBatch:
    """Some statements for a shard."""
    return ShardBatch("s0", is_broadcast=False, positions=positions)


def test_message_with_versions_keeps_the_clients_bytes() -> None:
    sent = request(WriteKind.INSERT, DOCUMENTS, lsid=SESSION, comment="mine")
    message = OpMsg(message_with_versions(sent.message, VERSION))
    assert message.request_id == sent.message.request_id
    assert message.body[4:-1] == sent.body[4:-1] + VERSION
    assert message.sequences[0].data == sent.message.sequences[0].data


def test_message_with_versions_drops_the_checksum() -> None:
    sent = Request(OpMsg(with_checksum(request(WriteKind.INSERT, DOCUMENTS).message.frame)))
    message = OpMsg(message_with_versions(sent.message, VERSION))
    assert not message.flags
    assert message.sequences[0].documents == list(map(bson.encode, DOCUMENTS))


def test_message_with_versions_when_the_sequence_comes_before_the_body() -> None:
    body = bson.encode({"insert": "orders", "$db": "shop"})
    frame = op_msg(body, request_id=9)
    section = encode_sequence(b"documents", map(bson.encode, DOCUMENTS))
    swapped = frame[:20] + section + frame[20:]
    sent = Request(OpMsg(struct.pack("<i", len(swapped)) + swapped[4:]))
    message = OpMsg(message_with_versions(sent.message, VERSION))
    assert message.body[4:-1] == body[4:-1] + VERSION
    assert message.sequences[0].documents == list(map(bson.encode, DOCUMENTS))


@pytest.mark.parametrize("in_body", [True, False])
def test_shard_message_holds_its_statements_only(in_body: bool) -> None:
    writes = batch(WriteKind.INSERT, DOCUMENTS, in_body, ordered=False, bypassDocumentValidation=True, comment="mine")
    received = Request(OpMsg(shard_message(writes, part(1, 3), VERSION)))
    assert [bson.decode(document) for document in received.documents(b"documents")] == [DOCUMENTS[1], DOCUMENTS[3]]
    document = received.document
    assert list(document) == ["insert", "ordered", "bypassDocumentValidation", "comment", "$db", "shardVersion"]
    assert received.body.endswith(VERSION + b"\0")


@pytest.mark.parametrize(
    ("numbered", "expected"),
    [
        ({}, [1, 3]),
        ({"stmtId": 10}, [11, 13]),
        ({"stmtIds": [7, 5, 9, 2]}, [5, 2]),
        ({"stmtIds": [7, 5, 9, 2], "autocommit": False}, [5, 2]),
    ],
)
def test_shard_message_of_a_retryable_write_numbers_its_statements(
    numbered: dict[str, Any], expected: list[int]
) -> None:
    writes = batch(WriteKind.INSERT, DOCUMENTS, lsid=SESSION, txnNumber=Int64(4), **numbered)
    document = Request(OpMsg(shard_message(writes, part(1, 3), VERSION))).document
    assert document["stmtIds"] == expected
    assert "stmtId" not in document
    assert (document["lsid"], document["txnNumber"]) == (SESSION, 4)


def test_shard_message_of_a_transaction_has_no_numbers_of_its_own() -> None:
    writes = batch(WriteKind.INSERT, DOCUMENTS, lsid=SESSION, txnNumber=Int64(4), autocommit=False)
    assert "stmtIds" not in Request(OpMsg(shard_message(writes, part(1, 3), VERSION))).document


@pytest.mark.parametrize(("numbered", "code"), [({"stmtIds": [1]}, 16), ({"stmtId": 1, "stmtIds": [1, 2, 3, 4]}, 72)])
def test_inconsistent_statement_ids(numbered: dict[str, Any], code: int) -> None:
    writes = batch(WriteKind.INSERT, DOCUMENTS, lsid=SESSION, txnNumber=Int64(4), **numbered)
    with pytest.raises(CommandError) as raised:
        shard_message(writes, part(1), VERSION)
    assert raised.value.code == code


def test_documents_with_the_same_statement_id_are_refused() -> None:
    def insert(*ids: int, **fields: object) -> None:
        batch(WriteKind.INSERT, DOCUMENTS, lsid=SESSION, txnNumber=Int64(4), stmtIds=list(ids), **fields)

    insert(-1, -1, -1, 0)
    insert(1, 2, 1, 3, autocommit=False)
    with pytest.raises(CommandError) as raised:
        insert(1, 2, 1, 3)
    assert raised.value.code == 72


def test_statements_for_all_shards_are_numbered_in_a_session_of_the_router() -> None:
    """So the new owner of a document knows what its former one has executed."""
    updates = [{"q": {"_id": n}, "u": {"$inc": {"n": 1}}, "multi": False} for n in range(3)]
    writes, session = batch(WriteKind.UPDATE, updates, ordered=False, lsid=SESSION), WriteSessions()
    assert writes.may_be_remembered
    sent = []
    for _ in range(2):
        with session.borrowed() as writes.own_session:
            everywhere = ShardBatch("s0", is_broadcast=True, positions=(0, 2))
            sent.append(Request(OpMsg(shard_message(writes, everywhere, VERSION))).document)
            alone = Request(OpMsg(shard_message(writes, part(1), VERSION))).document
            assert alone["lsid"] == SESSION
            assert "txnNumber" not in alone
    assert [each["stmtIds"] for each in sent] == [[0, 2]] * 2
    assert [each["txnNumber"] for each in sent] == [0, 1]
    assert sent[0]["lsid"] == sent[1]["lsid"] != SESSION


@pytest.mark.parametrize(
    ("kind", "statement"),
    [
        (WriteKind.UPDATE, {"q": {"_id": 1}, "u": {}, "multi": True}),
        (WriteKind.UPDATE, {"q": {"_id": 1}, "u": {}, "multi": 1}),
        (WriteKind.DELETE, {"q": {"_id": 1}, "limit": 0}),
        (WriteKind.DELETE, {"q": {"_id": 1}, "limit": True}),
    ],
)
def test_statements_that_may_concern_many_documents_are_not_remembered(
    kind: WriteKind, statement: dict[str, object]
) -> None:
    assert not batch(kind, [statement]).may_be_remembered


@pytest.mark.parametrize("w", [0, 0.0, Int64(0)])
def test_unacknowledged_write_is_acknowledged_by_shards(w: object) -> None:
    writes = batch(WriteKind.INSERT, DOCUMENTS, writeConcern={"w": w, "wtimeout": 5})
    assert writes.is_unacknowledged
    for message in (
        message_with_versions(writes.request.message, VERSION, writes.body),
        shard_message(writes, part(0), VERSION),
    ):
        assert Request(OpMsg(message)).document["writeConcern"] == {"w": 1, "wtimeout": 5}


@pytest.mark.parametrize("concern", [{"w": 1}, {"w": "majority"}, {"w": 0, "j": True}, {"j": False}, {"w": False}])
def test_other_write_concerns_pass_untouched(concern: dict[str, object]) -> None:
    writes = batch(WriteKind.INSERT, DOCUMENTS, writeConcern=concern)
    assert not writes.is_unacknowledged
    assert writes.body == writes.request.body


@pytest.mark.parametrize(("statements", "count"), [([], 0), ([{}] * 100_001, 100_001)])
def test_batch_of_impossible_size(statements: list[dict[str, object]], count: int) -> None:
    writes = batch(WriteKind.INSERT, statements)
    with pytest.raises(CommandError) as raised:
        _ = writes.statements
    assert raised.value.code == 16
    assert raised.value.message == f"Write batch sizes must be between 1 and 100000. Got {count} operations."


def test_ordered_has_to_be_a_bool() -> None:
    with pytest.raises(CommandError, match=r"'delete\.ordered' is the wrong type 'string', expected type 'bool'"):
        batch(WriteKind.DELETE, [{"q": {}, "limit": 0}], ordered="yes")


def test_message_that_leaves_no_room_for_versions() -> None:
    document = {"s": "x" * 15_999_700}
    assert batch(WriteKind.INSERT, [document] * 2).fits_with_versions
    assert not batch(WriteKind.INSERT, [document] * 3).fits_with_versions
