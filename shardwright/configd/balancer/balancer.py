"""The balancer's loop of rounds in one term."""

from datetime import datetime
from time import time
from typing import Any, Final

import trio

from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.metrics import BalancerMetrics
from shardwright.configd.balancer.round import Moves, Round, shown
from shardwright.configd.term.term import Term
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")

IDLE_SECONDS: Final = 10.0
"""Pause after a round without moves, or with an error."""

BUSY_SECONDS: Final = 1.0
"""Pause after a round with moves."""

PATIENCE_SECONDS: Final = 5.0
"""Maximum wait of the next round for the moves of a round.

Longer moves, of a large chunk or on a hanging shard, continue alongside it. Their shards are left out of it.
"""


class Balancer:
    """The balancer of one term."""

    def __init__(self, term: Term, metrics: BalancerMetrics) -> None:
        self._term = term
        self._metrics = metrics
        self._configuration = Configuration()

    async def run(self) -> None:
        """Run rounds until cancelled, whenever the settings permit them."""
        async with trio.open_nursery() as nursery:
            while True:
                moved = await self._maybe_run_round(nursery)
                await self._term.balancer_rounds.wait_wanted(BUSY_SECONDS if moved else IDLE_SECONDS)

    async def _maybe_run_round(self, nursery: trio.Nursery) -> bool:
        """Run a round if the settings permit it; returns whether it has moved something so far."""
        rounds = self._term.balancer_rounds
        rounds.begin()
        try:
            self._configuration = await self._configuration.reread(self._term.catalog)
            rounds.mode = self._configuration.balancer.mode
            # The active window is in the server's local time, as in MongoDB.
            if not self._configuration.is_valid or not self._configuration.balancer.may_balance(datetime.now()):
                return False
            rounds.is_deciding = True
            return await self._run_round(nursery)
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the balancer's settings", error=str(error))
            return False
        finally:
            rounds.end()

    async def _run_round(self, nursery: trio.Nursery) -> bool:
        self._metrics.rounds.add()
        self._metrics.round_error = ""
        started = trio.current_time()
        try:
            moves = await Round(self._term, self._configuration, self._metrics).decide()
        except Exception as error:
            await self._note_failure(started, error)
            return False
        finally:
            self._metrics.round_seconds = trio.current_time() - started
            self._metrics.round_ended_at = time()
        _log_what_is_left(moves)
        if moves.decisions.moves:
            over = trio.Event()
            nursery.start_soon(self._make_moves, moves, started, over)
            with trio.move_on_after(PATIENCE_SECONDS):
                await over.wait()
        return moves.moved > 0

    async def _make_moves(self, moves: Moves, started: float, over: trio.Event) -> None:
        with self._term.balancer_rounds.moving():
            try:
                await moves.make()
            except Exception as error:
                await self._note_failure(started, error)
            else:
                counts = {"candidateChunks": len(moves.decisions.moves), "chunksMoved": moves.moved}
                await self._log_round(started, {"errorOccurred": False, **counts})
            self._metrics.round_seconds = trio.current_time() - started
            self._metrics.round_ended_at = time()
        over.set()

    async def _note_failure(self, started: float, error: Exception) -> None:
        """Record that a round failed, even for an unexpected reason.

        The error must not end the daemon, because the next round would end the next primary's daemon too.
        """
        self._metrics.failed_rounds.add()
        self._metrics.round_error = error.code_name if isinstance(error, CommandError) else type(error).__name__
        if isinstance(error, CommandError | BackendError):
            logger.warning("A round failed", error=str(error))
        else:
            logger.exception("A round failed unexpectedly")
        await self._log_round(started, {"errorOccurred": True, "errmsg": str(error)})

    async def _log_round(self, started: float, details: dict[str, Any]) -> None:
        milliseconds = int((trio.current_time() - started) * 1000)
        await self._term.changelog.log_action("balancer.round", {"executionTimeMillis": milliseconds, **details})


def _log_what_is_left(moves: Moves) -> None:
    for each in moves.decisions.skipped:
        logger.debug("Left alone", **shown(each.to_document()))
