"""Errors in transactions that get the label TransientTransactionError."""

import pytest

from shardwright.sharding.transaction_protocol import label_transient
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError

EVERYWHERE = (112, 24, 267, 343, 304, 249, 13388, 150, 239, 246, 250, 272)
IN_STATEMENTS = (6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, 50915)
NEVER = (225, 256, 263, 11000, 50, 358, 72)


def is_labelled(code: int, *, is_ending: bool, **extra: object) -> bool:
    error = CommandError(code, "", extra=extra)
    label_transient(error, is_ending=is_ending)
    return error.labels == (TRANSIENT_TRANSACTION_ERROR,)


@pytest.mark.parametrize("code", EVERYWHERE)
@pytest.mark.parametrize("is_ending", [False, True])
def test_conflicts_always(code: int, is_ending: bool) -> None:
    assert is_labelled(code, is_ending=is_ending)


@pytest.mark.parametrize("code", IN_STATEMENTS)
def test_lost_shards_only_before_the_end(code: int) -> None:
    assert is_labelled(code, is_ending=False)
    assert not is_labelled(code, is_ending=True)


@pytest.mark.parametrize("code", NEVER)
@pytest.mark.parametrize("is_ending", [False, True])
def test_others_never(code: int, is_ending: bool) -> None:
    assert not is_labelled(code, is_ending=is_ending)


def test_aborted_transaction() -> None:
    assert is_labelled(251, is_ending=False)
    assert is_labelled(251, is_ending=True)
    assert not is_labelled(251, is_ending=True, writeConcernError={"code": 64})


def test_label_is_not_added_twice() -> None:
    error = CommandError(112, "", labels=(TRANSIENT_TRANSACTION_ERROR,))
    label_transient(error, is_ending=False)
    assert error.labels == (TRANSIENT_TRANSACTION_ERROR,)
