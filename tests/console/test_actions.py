"""The audit of actions: each is recorded before it is sent, and again with its outcome."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from shardwright.console.actions import ACTIONS, ActionFault, perform
from shardwright.console.reader import Refused
from shardwright.console.sessions import Rights, Session


class _Reader:
    """Answers a command with an error, or not at all."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    async def kept(self, *_: object) -> Rights:
        return Rights((), (), is_everything=True)

    async def command(self, *_: object, **__: object) -> None:
        if self._error is not None:
            raise self._error

    def forget(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "Performed an action"),
        (Refused("there is no such shard"), "An action failed"),
        (Refused("no router answers", is_away=True), "An action ended without a known result"),
        (asyncio.CancelledError(), "An action ended without a known result"),
        (RuntimeError("a bug"), "An action ended without a known result"),
    ],
)
def test_each_outcome_is_recorded(error: BaseException | None, outcome: str, caplog: pytest.LogCaptureFixture) -> None:
    reader: Any = _Reader(error)
    session = Session("", "", "manager@admin", reader)
    with caplog.at_level(logging.INFO), suppress(Refused, RuntimeError, asyncio.CancelledError):
        asyncio.run(perform(session, ACTIONS["balancer-stop"], {}, "10.0.0.1"))
    assert [record.message for record in caplog.records] == ["Started an action", outcome]


def test_an_action_that_is_not_allowed_is_not_started(caplog: pytest.LogCaptureFixture) -> None:
    reader: Any = _Reader(None)

    async def none(*_: object) -> Rights:
        return Rights((), ())

    reader.kept = none
    with caplog.at_level(logging.INFO), pytest.raises(ActionFault):
        asyncio.run(perform(Session("", "", "monitor@admin", reader), ACTIONS["balancer-stop"], {}, "10.0.0.1"))
    assert [record.message for record in caplog.records] == ["Refused an action"]
