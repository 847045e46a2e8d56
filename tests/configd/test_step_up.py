"""A config daemon whose term begins while the catalog cannot be initialized."""

import logging

import pytest
import trio
import trio.testing

from shardwright.configd import config_server
from shardwright.configd.balancer.balancer import BalancerMetrics
from shardwright.configd.config_server import ConfigServer
from shardwright.daemon.metrics import Counter
from shardwright.daemon.sidecar.sidecar import SidecarOptions
from shardwright.daemon.sidecar.term_fence import Reign, working_for
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from tests.transports import new_transport


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted"), logging.INFO),
        (CommandError(ErrorCode.NotWritablePrimary, "not primary"), logging.INFO),
        (CommandError(ErrorCode.ShutdownInProgress, "shutting down"), logging.INFO),
        (BackendError("mongod", "closed the connection", sent=True), logging.INFO),
        (CommandError(ErrorCode.IncompatibleShardingConfigVersion, "a newer catalog"), logging.ERROR),
    ],
    ids=lambda value: getattr(value, "code_name", None) or type(value).__name__,
)
def test_a_step_down_meanwhile_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: CommandError | BackendError,
    level: int,
) -> None:
    attempts = []

    async def initialize(_mongod: object) -> None:
        attempts.append(trio.current_time())
        raise error

    monkeypatch.setattr(config_server, "initialize_catalog", initialize)

    async def main() -> None:
        options = SidecarOptions("h:1", "/nowhere", "h:2", 100)
        server = ConfigServer(options, new_transport(), Counter(), BalancerMetrics(), lambda: None)
        with trio.move_on_after(30), working_for(Reign(7, 1)):
            async with trio.open_nursery() as nursery:
                await server.on_step_up(7, nursery)
        assert server.current_term is None

    with caplog.at_level(logging.INFO):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(attempts) > 2  # for the term goes on if the step-down fails
    assert {record.levelno for record in caplog.records} == {level}
    assert all(vars(record)["fields"]["term"] == 7 for record in caplog.records)
