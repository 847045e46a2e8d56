"""Sessions and transactions that may continue to read a cursor."""

from base64 import b64encode
from hashlib import sha256
from uuid import UUID

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.router.cursors.open_cursor import NOBODY, CursorOwner
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request

ONE, TWO = UUID(int=1), UUID(int=2)


def owner(session: UUID | None = None, **fields: object) -> CursorOwner:
    lsid: dict[str, object] = {} if session is None else {"lsid": {"id": Binary.from_uuid(session)}}
    return CursorOwner.of(request({"find": "c", **lsid, **fields}))


def test_the_same_session_may() -> None:
    owner(ONE).check(5, owner(ONE))
    NOBODY.check(5, owner())
    owner(ONE, txnNumber=Int64(3), autocommit=False).check(5, owner(ONE, txnNumber=Int64(3), autocommit=False))


def test_the_number_of_a_retryable_write_is_no_transaction() -> None:
    assert owner(ONE, txnNumber=Int64(3)) == owner(ONE)


ANN = sha256(b"ann@admin").digest()
IN_ONE_OF_ANN = f"{ONE} - {b64encode(ANN).decode()} -  - "
IN_ONE = "00000000-0000-0000-0000-000000000001 - 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= -  - "


@pytest.mark.parametrize(
    ("opened_by", "reader", "code", "message"),
    [
        (owner(), owner(ONE), 50799, f"not created in a session, in session {IN_ONE}"),
        (owner(ONE), owner(), 50800, f"created in session {IN_ONE}, without an lsid"),
        (owner(TWO), owner(ONE), 50801, f", in session {IN_ONE}"),
        (CursorOwner(TWO.bytes, None, ANN), CursorOwner(ONE.bytes, None, ANN), 50801, f", in session {IN_ONE_OF_ANN}"),
        (owner(ONE), CursorOwner(ONE.bytes, 3), 50802, "not created in a transaction, in transaction 3"),
        (CursorOwner(ONE.bytes, 3), owner(ONE), 50803, "created in transaction 3, without a txnNumber"),
        (CursorOwner(ONE.bytes, 3), CursorOwner(ONE.bytes, 4), 50804, "created in transaction 3, in transaction 4"),
    ],
)
def test_nobody_else_may(opened_by: CursorOwner, reader: CursorOwner, code: int, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        opened_by.check(5, reader)
    assert refused.value.code == code
    assert refused.value.message.startswith("Cannot run getMore on cursor 5, which was ")
    assert refused.value.message.endswith(message)
