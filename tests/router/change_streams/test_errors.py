"""Errors with the label that makes drivers resume."""

import pytest

from shardwright.router.change_streams.errors import labelled
from shardwright.wire.errors import CommandError


@pytest.mark.parametrize(
    "code", [6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436]
)
def test_resumable_errors_are_labelled_once(code: int) -> None:
    with pytest.raises(CommandError) as raised, labelled(), labelled():
        raise CommandError(code, "")
    assert raised.value.labels == ("ResumableChangeStreamError",)


@pytest.mark.parametrize("code", [2, 43, 237, 260, 280, 286])
def test_other_errors_are_not(code: int) -> None:
    with pytest.raises(CommandError) as raised, labelled():
        raise CommandError(code, "")
    assert raised.value.labels == ()
