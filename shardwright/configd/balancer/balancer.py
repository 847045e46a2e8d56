"""The balancer's loop: one round after the other for as long as this daemon is primary."""

from datetime import datetime
from typing import Any, Final

import trio

from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.balancer.round import Round, RoundResult
from shardwright.configd.balancer.shown import shown
from shardwright.configd.primary.primary import Primary
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

IDLE_SECONDS: Final = 10.0
"""From a round without moves, or with an error, to the next."""

BUSY_SECONDS: Final = 1.0
"""From a round with moves to the next."""


class Balancer:
    """The balancer of one term.

    Args:
        primary: the term's resources.
        metrics: counts what is done.
    """

    def __init__(self, primary: Primary, metrics: BalancerMetrics) -> None:
        self._primary = primary
        self._metrics = metrics
        self._configuration = Configuration()

    async def run(self) -> None:
        """Run rounds until cancelled, as far as the settings permit them."""
        while True:
            moved = await self._maybe_run_round()
            await self._primary.balancer_rounds.wait_wanted(BUSY_SECONDS if moved else IDLE_SECONDS)

    async def _maybe_run_round(self) -> bool:
        """Run a round if one may begin; returns whether it has moved something."""
        rounds = self._primary.balancer_rounds
        rounds.begin()
        try:
            self._configuration = await self._configuration.reread(self._primary.catalog)
            rounds.mode = self._configuration.balancer.mode
            # The active window is in the server's local time, as in MongoDB.
            if not self._configuration.is_valid or not self._configuration.balancer.may_balance(datetime.now()):
                return False
            rounds.is_balancing = True
            return await self._run_round()
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the balancer's settings", error=str(error))
            return False
        finally:
            rounds.end()

    async def _run_round(self) -> bool:
        self._metrics.rounds.add()
        started = trio.current_time()
        try:
            result = await Round(self._primary, self._configuration, self._metrics).run()
        except (CommandError, BackendError) as error:
            self._metrics.failed_rounds.add()
            logger.warning("A round failed", error=str(error))
            await self._log_round(started, {"errorOccurred": True, "errmsg": str(error)})
            return False
        finally:
            self._metrics.round_seconds = trio.current_time() - started
        _log_what_is_left(result)
        if result.decisions.moves:
            moves = {"candidateChunks": len(result.decisions.moves), "chunksMoved": result.moved}
            await self._log_round(started, {"errorOccurred": False, **moves})
        return result.moved > 0

    async def _log_round(self, started: float, details: dict[str, Any]) -> None:
        milliseconds = int((trio.current_time() - started) * 1000)
        await self._primary.changelog.log_action("balancer.round", {"executionTimeMillis": milliseconds, **details})


def _log_what_is_left(result: RoundResult) -> None:
    for each in result.decisions.skipped:
        logger.debug("Left alone", **shown(each.to_document()))
